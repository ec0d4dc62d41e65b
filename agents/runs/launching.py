"""How a run is launched: the engine, what each node may use, and which nodes come back."""

import os

import launchpad as lp
from rl_replicator.errors import UsageError

_LAUNCH_TYPES = {
    "threads": lp.LaunchType.LOCAL_MULTI_THREADING,
    "processes": lp.LaunchType.LOCAL_MULTI_PROCESSING,
    "ray": lp.LaunchType.RAY,
}
_LEARNER = "learner"
# Set by `share_processors` in the launcher; machines of a named cluster do not inherit it.
_THREADS = "TF_NUM_INTRAOP_THREADS"


def share_processors() -> None:
    """Gives one operation of TensorFlow half of the processors, unless the user has said otherwise.

    The networks of control are small: splitting their operations over all processors costs more
    than it gains, and the actors need some of them too.
    """
    os.environ.setdefault(_THREADS, str(max(1, (os.cpu_count() or 1) // 2)))


def launch(program: lp.Program, engine: str, address: str | None, gpus: int) -> lp.ProgramManager:
    """Starts the program.

    Args:
      program: of the run.
      engine: "threads", "processes" or "ray".
      address: of the Ray cluster; None for a Ray of the run's own.
      gpus: of each learner.

    Raises:
      UsageError: there is no such cluster, or it does not have what the program asks for.
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
    """Only the learner may see a GPU: TensorFlow takes all of its memory in whatever process does.

    No node asks Ray for CPUs: a run has more nodes than a small machine has CPUs, and most of them
    wait most of the time.
    """
    env = {_THREADS: os.environ[_THREADS]} if address and _THREADS in os.environ else {}
    return {
        label: lp.PythonProcess(gpus=gpus if label == _LEARNER else 0, env=env)
        for label in program.groups
    }


def _restart_policies(program: lp.Program) -> dict[str, lp.RestartPolicy]:
    """A node whose process dies comes back; an exception would come back as well, so it ends all.

    Several learners are one replicator: none of them can go on without the others.
    """
    return {
        label: lp.RestartPolicy(on_exception=False, together=label == _LEARNER and len(nodes) > 1)
        for label, nodes in program.groups.items()
    }
