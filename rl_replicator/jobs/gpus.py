"""Which GPUs of this machine each process of a job may use."""

import os
import pathlib

from rl_replicator import errors

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def shares(num_workers: int) -> list[dict[str, str]]:
    """Divides the GPUs that this process may use among the workers of a job.

    Every worker gets equally many, because each takes one replica per GPU; what is left over is not
    used. Without a GPU, nothing is set.

    Args:
      num_workers: number of workers on this machine.

    Returns:
      What is added to the environment of each worker.

    Raises:
      ConfigError: if there are GPUs, but fewer than workers.
    """
    gpus = _visible()
    if not gpus:
        return [{} for _ in range(num_workers)]
    each = len(gpus) // num_workers
    if not each:
        raise errors.ConfigError(
            f"--workers: expected at most {len(gpus)}, one for each GPU of this machine, got "
            f"{num_workers}; set {_VISIBLE}= to train on the CPU"
        )
    return [{_VISIBLE: ",".join(gpus[i * each : (i + 1) * each])} for i in range(num_workers)]


def none() -> dict[str, str]:
    """Returns what is added to the environment of a process that must not use a GPU."""
    return {_VISIBLE: ""} if _visible() else {}


def _visible() -> list[str]:
    chosen = os.environ.get(_VISIBLE)
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    devices = pathlib.Path("/dev").glob("nvidia[0-9]*")
    return sorted((device.name.removeprefix("nvidia") for device in devices), key=int)
