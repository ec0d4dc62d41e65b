"""A job's processes on this machine, which start and end together."""

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from rl_replicator import errors
from rl_replicator.jobs import cluster, gpus
from rl_replicator.jobs.restarts import Outcome
from rl_replicator.processes import output, ports
from rl_replicator.processes.guard import Guard
from rl_replicator.processes.process_group import ProcessGroup
from rl_replicator.processes.restarts import Restarts

# Wait after a first failure, because another process may fail too, and reveal the cause.
_SETTLE_SECONDS = 0.3
# Longest wait for the last lines of ended processes, in case nobody reads the output.
_OUTPUT_SECONDS = 20.0
# Exit statuses after which a restart would end the same way: wrong arguments, NaN weights, or a
# full disk.
_FINAL = (2, errors.DISK_STATUS)


@dataclasses.dataclass(frozen=True, eq=False)
class JobTask:
    """A process of a job.

    Attributes:
      name: name such as "worker 0", which prefixes the process's lines and appears in messages.
      environment: environment variables to add to the supervisor's.
      ends_job: whether the job needs the task: it is complete when all such tasks have ended with
        status 0.
      is_replaceable: whether the task is restarted alone when it fails. A failure of any other task
        ends the job.
    """

    name: str
    environment: Mapping[str, str]
    ends_job: bool = True
    is_replaceable: bool = False


class LocalJob:
    """Processes that all run the same command. Not thread-safe."""

    def __init__(self, command: Sequence[str], tasks: Sequence[JobTask], max_restarts: int):
        """Starts nothing yet.

        Args:
          command: command of every task, and its arguments.
          tasks: the tasks; at least one has `ends_job`.
          max_restarts: greatest number of restarts in a row of each replaceable task.
        """
        self._command = list(command)
        self._tasks = tasks
        self._restarts = {task: Restarts(max_restarts) for task in tasks if task.is_replaceable}
        self._running: dict[JobTask, ProcessGroup] = {}
        self._started_at: dict[JobTask, float] = {}
        self._again_at: dict[JobTask, float] = {}
        self._failed_at: float | None = None
        self._copiers: dict[JobTask, output.LineCopier] = {}
        self._guard = Guard()
        self._is_in_haste = False

    def start(self) -> None:
        """Starts all tasks; called again after `stop` for a restart."""
        self._again_at = {}
        self._failed_at = None
        self._running = {}
        for task in self._tasks:
            self._start(task)

    def poll(self) -> Outcome | None:
        """Restarts failed tasks that are replaceable.

        Returns:
          None while the job runs, and its outcome afterwards.
        """
        now = time.monotonic()
        for task, when in list(self._again_at.items()):
            if now >= when:
                del self._again_at[task]
                self._start(task)
        ended = {
            task: status
            for task, process in self._running.items()
            if (status := process.poll()) is not None
        }
        if all(ended.get(task) == 0 for task in self._tasks if task.ends_job):
            return Outcome(0, "the job is complete", is_final=True)
        failed = {task: status for task, status in ended.items() if status != 0}
        for task, status in failed.items():
            if status in _FINAL:
                return Outcome(
                    status, f"{task.name} ended with status {status} (see its error)", is_final=True
                )
            if task.is_replaceable:
                outcome = self._replace(task, status)
                if outcome is not None:
                    return outcome
        broken = {task: status for task, status in failed.items() if not task.is_replaceable}
        if not broken:
            return None
        if self._failed_at is None:
            self._failed_at = now
        if now - self._failed_at < _SETTLE_SECONDS:
            return None
        # Prefers the task that failed by itself to those that ended because they lost it.
        task, status = min(broken.items(), key=lambda x: x[1] == errors.WORKER_LOST_STATUS)
        return Outcome(_shell_status(status), f"{task.name} {_describe_status(status)}")

    def hurry(self) -> None:
        """Makes `stop` kill the remaining processes immediately; signal handlers may call it."""
        self._is_in_haste = True

    def stop(self, grace_seconds: float) -> None:
        """Ends all processes, first by SIGTERM and then by SIGKILL; reports which were killed.

        Tasks with `ends_job` come first: a chief that saves reads variables of parameter servers.

        Args:
          grace_seconds: seconds between the two signals.
        """
        needed = {task: group for task, group in self._running.items() if task.ends_job}
        others = {task: group for task, group in self._running.items() if not task.ends_job}
        for groups in (needed, others):
            self._terminate(groups, grace_seconds)
        for group in self._running.values():
            group.wait()
        deadline = time.monotonic() + _OUTPUT_SECONDS
        for copier in self._copiers.values():
            copier.drain(max(0.0, deadline - time.monotonic()))
        self._guard.close()

    def _terminate(self, groups: Mapping[JobTask, ProcessGroup], grace_seconds: float) -> None:
        """Asks processes to end, waits for them, and kills those that do not end in time."""
        for group in groups.values():
            group.send_signal(signal.SIGTERM)
            group.send_signal(signal.SIGCONT)  # A stopped process would not handle SIGTERM.
        deadline = time.monotonic() + grace_seconds
        while left := [task.name for task, group in groups.items() if group.poll() is None]:
            if self._is_in_haste or time.monotonic() > deadline:
                why = "a second signal" if self._is_in_haste else f"{grace_seconds:g} s are over"
                report(f"{why}: killing {', '.join(left)}, which had not ended")
                break
            time.sleep(0.02)
        for group in groups.values():
            group.kill()

    def _start(self, task: JobTask) -> None:
        # Unbuffered, so that lines appear as soon as they are printed.
        environment = {"PYTHONUNBUFFERED": "1", **os.environ, **task.environment}
        reading, writing = os.pipe()
        self._copiers[task] = output.LineCopier(
            output.prefixed(f"{task.name} | "), {"stdout": os.fdopen(reading, "rb")}
        )
        with os.fdopen(writing, "wb") as pipe:
            self._running[task] = ProcessGroup.start(self._command, environment, pipe, self._guard)
        self._started_at[task] = time.monotonic()

    def _replace(self, task: JobTask, status: int) -> Outcome | None:
        del self._running[task]
        restarts = self._restarts[task]
        pause = restarts.next_pause(time.monotonic() - self._started_at[task])
        reason = f"{task.name} {_describe_status(status)}"
        if pause is None:
            return Outcome(_shell_status(status), f"{reason}, too often", is_final=True)
        report(f"{reason}; restarting it in {pause:g} s ({restarts.progress()})")
        self._again_at[task] = time.monotonic() + pause
        return None


class Ports:
    """Ports of this machine, which are reserved until the object is deleted."""

    def __init__(self, count: int):
        """Reserves ports.

        Args:
          count: number of ports.

        Raises:
          ConfigError: if this process cannot reserve that many.
        """
        try:
            self._sockets = [ports.reserve("") for _ in range(count)]
        except OSError as error:
            raise errors.ConfigError(
                f"expected {count} ports for the processes of the job, got: {error}; start fewer "
                "processes, or allow more open files with ulimit -n"
            ) from None

    @property
    def addresses(self) -> list[str]:
        """Addresses of the ports on this machine, `host:port`."""
        return [f"127.0.0.1:{holder.getsockname()[1]}" for holder in self._sockets]


def make_tasks(
    num_workers: int, num_parameter_servers: int, addresses: Sequence[str]
) -> list[JobTask]:
    """Returns the tasks of a job on this machine, each with its TF_CONFIG and its GPUs.

    Args:
      num_workers: number of workers, not counting the chief of a job with parameter servers.
      num_parameter_servers: number of parameter servers; 0 for a synchronous job.
      addresses: one address for each task.

    Raises:
      ConfigError: if this machine has GPUs, but fewer than workers.
    """
    rest = iter(addresses)
    kinds = {"worker": num_workers}
    if num_parameter_servers:
        kinds = {"chief": 1, **kinds, "ps": num_parameter_servers}
    places = {kind: tuple(next(rest) for _ in range(count)) for kind, count in kinds.items()}
    worker_gpus = gpus.shares(num_workers)
    tasks = []
    for kind, count in kinds.items():
        for index in range(count):
            config = cluster.Cluster(places, kind, index).to_json()
            tasks.append(
                JobTask(
                    f"{kind} {index}",
                    # Only workers compute on GPUs.
                    {"TF_CONFIG": config}
                    | (worker_gpus[index] if kind == "worker" else gpus.hidden()),
                    ends_job=not num_parameter_servers or kind == "chief",
                    is_replaceable=bool(num_parameter_servers) and kind == "worker",
                )
            )
    return tasks


def report(line: str) -> None:
    """Prints a line of the supervisor to standard error; a job continues if that fails."""
    with contextlib.suppress(OSError):
        print(f"supervisor | {line}", file=sys.stderr, flush=True)


def _describe_status(status: int) -> str:
    if status == errors.WORKER_LOST_STATUS:
        return "lost another process"
    return output.describe_end(status)


def _shell_status(status: int) -> int:
    return status if status >= 0 else 128 - status
