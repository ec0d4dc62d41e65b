"""Launches a run: the engine, the resources of each node, and which nodes are restarted."""

import os

import launchpad as lp
from agents.replay.memory_estimate import available_memory
from rl_replicator.errors import UsageError, check_option
from rl_replicator.processes.ports import OPEN_PORTS

_LAUNCH_TYPES = {
    "threads": lp.LaunchType.LOCAL_MULTI_THREADING,
    "processes": lp.LaunchType.LOCAL_MULTI_PROCESSING,
    "ray": lp.LaunchType.RAY,
}
_LEARNER = "learner"
# Low estimates of the memory of an environment, and of an actor; in a separate process, an actor
# also needs that of TensorFlow.
_ENVIRONMENT_BYTES = 20e6
_ACTOR_BYTES = {"threads": 0.0, "processes": 280e6, "ray": 280e6}
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


def check_actors(actors: int, envs_per_actor: int, engine: str, address: str | None) -> None:
    """Refuses more actors and environments than fit into the memory of this machine.

    Args:
      actors: number of actors.
      envs_per_actor: environments of each.
      engine: "threads", "processes" or "ray".
      address: Ray cluster to run on, whose memory is not known here; None for this machine.

    Raises:
      ConfigError: if they do not fit.
    """
    memory = available_memory()
    if address is not None or memory == float("inf"):
        return
    base = _ACTOR_BYTES[engine]
    where = f"with --launch {engine} and {memory / 1e9:.1f} GB of free memory"
    most = max(1, int(memory / (base + _ENVIRONMENT_BYTES)))
    check_option(actors <= most, "actors", f"at most {most} {where}", actors)
    most = max(1, int((memory / actors - base) / _ENVIRONMENT_BYTES))
    expected = f"at most {most} with --actors {actors}, {where.removeprefix('with ')}"
    check_option(envs_per_actor <= most, "envs_per_actor", expected, envs_per_actor)


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
