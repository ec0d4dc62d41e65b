"""Launches a run: the engine, the resources of each node, and which nodes are restarted."""

import os

import launchpad as lp
from rl_replicator.errors import UsageError
from rl_replicator.processes.ports import OPEN_PORTS

_LAUNCH_TYPES = {
    "threads": lp.LaunchType.LOCAL_MULTI_THREADING,
    "processes": lp.LaunchType.LOCAL_MULTI_PROCESSING,
    "ray": lp.LaunchType.RAY,
}
_LEARNER = "learner"
# Pause before the first restart of a node; it doubles with each further one in a row. Nodes are
# forked, so that a restart costs little.
_FIRST_PAUSE_SECS = 0.05
# Set by `share_processors` in the launcher.
_THREADS = "TF_NUM_INTRAOP_THREADS"
# Environment variables that the machines of a named cluster do not inherit from the launcher.
_SHARED = (_THREADS, OPEN_PORTS)


def share_processors() -> None:
    """Limits a TensorFlow operation to half of the processors, unless the user has set a number.

    Networks for control are small: splitting an operation over all processors costs more than it
    gains, and the actors need some of them too.
    """
    os.environ.setdefault(_THREADS, str(max(1, (os.cpu_count() or 1) // 2)))


def launch(program: lp.Program, engine: str, address: str | None, gpus: int) -> lp.ProgramManager:
    """Starts the program.

    Args:
      program: describes the nodes.
      engine: "threads", "processes" or "ray".
      address: address of the Ray cluster; None for a new Ray on this machine.
      gpus: GPUs of each learner process.

    Returns:
      The manager of the running program.

    Raises:
      UsageError: if there is no such cluster, or it lacks the resources.
    """
    # Threads share one process, which ends with all of them.
    is_apart = engine != "threads"
    try:
        return lp.launch(
            program,
            _LAUNCH_TYPES[engine],
            local_resources=_resources(program, address, gpus) if is_apart else None,
            restart_policies=_restart_policies(program) if is_apart else None,
            address=address,
        )
    except (ValueError, ConnectionError) as error:
        raise UsageError(f"--launch {engine}: {error}") from error


def _resources(program: lp.Program, address: str | None, gpus: int) -> dict[str, lp.PythonProcess]:
    """Returns the resources of each node.

    Only learners see GPUs, because TensorFlow takes all memory of a GPU that it sees. No node
    requests CPUs from Ray: a run has more nodes than a small machine has CPUs, and most of them
    wait most of the time.
    """
    env = {name: os.environ[name] for name in _SHARED if address and name in os.environ}
    return {
        label: lp.PythonProcess(gpus=gpus if label == _LEARNER else 0, env=env)
        for label in program.groups
    }


def _restart_policies(program: lp.Program) -> dict[str, lp.RestartPolicy]:
    """Returns which nodes are restarted.

    A node whose process dies is restarted. After an exception it is not, because the exception
    would occur again. Several learners form one replicator, so they restart together.
    """
    return {
        label: lp.RestartPolicy(
            on_exception=False,
            together=label == _LEARNER and len(nodes) > 1,
            initial_backoff_secs=_FIRST_PAUSE_SECS,
        )
        for label, nodes in program.groups.items()
    }
