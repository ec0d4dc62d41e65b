"""Divides the GPUs of this machine among the processes of a job."""

from rl_replicator import errors
from rl_replicator.processes import gpus


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
    visible = gpus.visible()
    if not visible:
        return [{} for _ in range(num_workers)]
    each = len(visible) // num_workers
    if not each:
        raise errors.ConfigError(
            f"--workers: expected at most {len(visible)}, one for each GPU of this machine, got "
            f"{num_workers}; set {gpus.VISIBLE}= to train on the CPU"
        )
    return [
        {gpus.VISIBLE: ",".join(visible[i * each : (i + 1) * each])} for i in range(num_workers)
    ]


def hidden() -> dict[str, str]:
    """Returns the environment variables that hide the GPUs from a process."""
    return {gpus.VISIBLE: ""} if gpus.visible() else {}
