"""Makes replicators by name."""

import importlib

from rl_replicator import errors, replicator

# Kind -> module and class; the class method `from_text` parses the text after the colon.
_BACKENDS = {
    "single_device": ("single_device", "SingleDeviceReplicator"),
    "multi_device": ("multi_device", "MultiDeviceReplicator"),
    "mesh": ("mesh.replicator", "MeshReplicator"),
    "tpu": ("tpu", "TpuReplicator"),
    "multi_worker": ("multi_worker.replicator", "MultiWorkerReplicator"),
    "multi_worker_async": ("parameter_server.replicator", "MultiWorkerAsyncReplicator"),
}


def make(name: str) -> replicator.Replicator:
    """Makes a replicator from a string, such as an option of a command line.

    Args:
      name: a number of devices; or "single_device", "single_device:xla" (compiled by XLA),
        "multi_device" (all GPUs; without GPUs, all logical devices of the CPU), "multi_device:2",
        "mesh:data=2,model=2" (with layouts: "mesh:data=2,model=2@first/w=none,model"), "tpu",
        "tpu:grpc://10.0.0.2:8470", "multi_worker", "multi_worker_async" or
        "multi_worker_async:max_staleness=4".

    Returns:
      The replicator.

    Raises:
      ConfigError: if the name is unknown, or the text after the colon is malformed.
    """
    if name.isdecimal():
        name = "single_device" if int(name) == 1 else f"multi_device:{int(name)}"
    kind, colon, argument = name.partition(":")
    if kind not in _BACKENDS or (colon and not argument):
        raise errors.ConfigError(
            f"expected a replicator such as single_device or multi_device:2, got {name!r}; "
            f"write one of {', '.join(_BACKENDS)}"
        )
    module, class_name = _BACKENDS[kind]
    backend = getattr(importlib.import_module(f"rl_replicator.backends.{module}"), class_name)
    return backend.from_text(argument)
