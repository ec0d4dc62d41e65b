"""Replicators by name."""

import importlib

from rl_replicator import errors, replicator

# Each class makes itself from what follows the colon, with its class method `from_text`.
_BACKENDS = {
    "single_device": ("single_device", "SingleDeviceReplicator"),
    "multi_device": ("multi_device", "MultiDeviceReplicator"),
    "mesh": ("mesh.replicator", "MeshReplicator"),
    "tpu": ("tpu", "TpuReplicator"),
    "multi_worker": ("multi_worker.replicator", "MultiWorkerReplicator"),
    "multi_worker_async": ("parameter_server.replicator", "MultiWorkerAsyncReplicator"),
}


def make(name: str) -> replicator.Replicator:
    """Makes a replicator from one string, such as a command line gives.

    Args:
      name: "single_device", "multi_device" (all devices there are), "multi_device:2" (replicas),
        "mesh:data=2,model=2" (with layouts: "mesh:data=2,model=2@first/w=none,model"), "tpu",
        "tpu:grpc://10.0.0.2:8470", "multi_worker" or "multi_worker_async".

    Raises:
      ConfigError: unknown name, or an argument that it does not take.
    """
    kind, colon, argument = name.partition(":")
    if kind not in _BACKENDS or (colon and not argument):
        raise errors.ConfigError(
            f"expected a replicator such as single_device or multi_device:2, got {name!r}; "
            f"write one of {', '.join(_BACKENDS)}"
        )
    module, class_name = _BACKENDS[kind]
    backend = getattr(importlib.import_module(f"rl_replicator.backends.{module}"), class_name)
    return backend.from_text(argument)
