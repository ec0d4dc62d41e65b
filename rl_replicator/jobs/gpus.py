"""Divides the GPUs of this machine among the processes of a job."""

import os
import pathlib

from rl_replicator import errors

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def shares(num_workers: int) -> list[dict[str, str]]:
    """Divides the GPUs that this process may use among the workers of a job.

    All workers get the same number of GPUs, because each runs one replica per GPU. Remaining GPUs
    are not used.

    Args:
      num_workers: number of workers on this machine.

    Returns:
      The environment variables to add for each worker; none on a machine without GPUs.

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


def hidden() -> dict[str, str]:
    """Returns the environment variables that hide the GPUs from a process."""
    return {_VISIBLE: ""} if _visible() else {}


def _visible() -> list[str]:
    chosen = os.environ.get(_VISIBLE)
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    devices = pathlib.Path("/dev").glob("nvidia[0-9]*")
    return sorted((device.name.removeprefix("nvidia") for device in devices), key=int)
