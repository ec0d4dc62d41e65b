"""A job's processes on this machine, which start and end together."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

from rl_replicator import errors
from rl_replicator.jobs import cluster, gpus
from rl_replicator.jobs.restarts import Outcome, Restarts

# Wait after a first failure, because another process may fail too and reveal the cause.
_SETTLE_SECONDS = 0.3
_USAGE = 2
_ENTRY = pathlib.Path(__file__).with_name("task_entry.py")


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

    def __init__(self, command: Sequence[str], tasks: Sequence[JobTask], restarts: Restarts):
        """Starts nothing yet.

        Args:
          command: command of every task, and its arguments.
          tasks: the tasks; at least one has `ends_job`.
          restarts: limits the restarts of replaceable tasks.
        """
        self._command = list(command)
        self._tasks = tasks
        self._restarts = restarts
        self._running: dict[JobTask, subprocess.Popen] = {}
        self._again_at: dict[JobTask, float] = {}
        self._failed_at: float | None = None
        self._output = _Output(sys.stdout.buffer)

    def start(self) -> None:
        """Starts all tasks; again after `stop`."""
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
            if status == _USAGE:
                return Outcome(_USAGE, f"{task.name} rejected its arguments", is_final=True)
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

    def stop(self, grace_seconds: float) -> None:
        """Ends all processes, first by SIGTERM and then by SIGKILL.

        Args:
          grace_seconds: seconds between the two signals.
        """
        for process in self._running.values():
            if process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)  # A stopped process would not handle SIGTERM.
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline and any(p.poll() is None for p in self._running.values()):
            time.sleep(0.02)
        for process in self._running.values():
            _kill(process)
        self._output.drain()

    def _start(self, task: JobTask) -> None:
        process = subprocess.Popen(
            [sys.executable, "-IS", str(_ENTRY), str(os.getpid()), *self._command],
            # Unbuffered, so that lines appear as soon as they are printed.
            env={"PYTHONUNBUFFERED": "1", **os.environ, **task.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Only the supervisor handles Ctrl-C. And a session's processes can be killed together.
            start_new_session=True,
        )
        assert process.stdout is not None
        self._output.follow(task.name, process.stdout)
        self._running[task] = process

    def _replace(self, task: JobTask, status: int) -> Outcome | None:
        _kill(self._running.pop(task))
        delay = self._restarts.next_delay()
        reason = f"{task.name} {_describe_status(status)}"
        if delay is None:
            return Outcome(_shell_status(status), f"{reason}, too often", is_final=True)
        report(f"{reason}; restarting it in {delay:g} s ({self._restarts.progress()})")
        self._again_at[task] = time.monotonic() + delay
        return None


class _Output:
    """Writes the lines of several processes to a stream, each line prefixed with a name."""

    def __init__(self, stream: IO[bytes]):
        """Stores the stream."""
        self._stream = stream
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def follow(self, name: str, pipe: IO[bytes]) -> None:
        """Copies the lines of a process in the background.

        Args:
          name: prefix of the lines.
          pipe: output of the process.
        """
        thread = threading.Thread(target=self._copy, args=(name, pipe), daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def drain(self) -> None:
        """Waits up to a second until the lines of ended processes are written."""
        for thread in self._threads:
            thread.join(1)

    def _copy(self, name: str, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                # If the reader of the stream is gone, the job continues without output.
                with self._lock, contextlib.suppress(OSError):
                    self._stream.write(f"{name} | ".encode() + line.rstrip(b"\n") + b"\n")
                    self._stream.flush()


class Ports:
    """Reserves free ports of this machine for the job's processes.

    The kernel assigns the port of a bound socket to no other process, even if the socket does not
    listen. But a server that sets SO_REUSEADDR, as TensorFlow's does, can listen there, and again
    after a restart.
    """

    def __init__(self, count: int):
        """Reserves ports.

        Args:
          count: number of ports.
        """
        self._sockets = []
        for _ in range(count):
            holder = socket.socket()
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", 0))
            self._sockets.append(holder)

    @property
    def addresses(self) -> list[str]:
        """Addresses of the ports on this machine, `host:port`."""
        return [f"127.0.0.1:{holder.getsockname()[1]}" for holder in self._sockets]


def make_tasks(
    num_workers: int, num_parameter_servers: int, addresses: Sequence[str]
) -> list[JobTask]:
    """Returns the tasks of a job on this machine, each with its TF_CONFIG and its GPUs.

    Args:
      num_workers: number of workers, without the chief that a job with parameter servers has too.
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
    """Prints a line of the supervisor to standard error."""
    print(f"supervisor | {line}", file=sys.stderr, flush=True)


def _kill(process: subprocess.Popen) -> None:
    """Kills a process and all processes of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _describe_status(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    if status == errors.WORKER_LOST_STATUS:
        return "lost another process"
    return f"ended with status {status}"


def _shell_status(status: int) -> int:
    return status if status >= 0 else 128 - status
