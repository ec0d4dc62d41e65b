"""A job's processes on this machine: started, watched and ended together."""

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

# After a first failure: others may fail too, and tell more about the cause.
_SETTLE_SECONDS = 0.3
_USAGE = 2
_ENTRY = pathlib.Path(__file__).with_name("task_entry.py")


@dataclasses.dataclass(frozen=True, eq=False)
class JobTask:
    """One process of a job.

    Attributes:
      name: such as "worker 0": before its lines, and in messages.
      environment: what is added to the supervisor's own.
      ends_job: the job is done when all tasks of this kind have ended with status 0.
      is_replaceable: started again alone when it fails; a failure of any other ends the job.
    """

    name: str
    environment: Mapping[str, str]
    ends_job: bool = True
    is_replaceable: bool = False


class LocalJob:
    """Processes that all run one command. For `supervisor.Supervisor`; used by one thread."""

    def __init__(self, command: Sequence[str], tasks: Sequence[JobTask], restarts: Restarts):
        """Starts nothing yet.

        Args:
          command: of every task.
          tasks: at least one that `ends_job`.
          restarts: counts those of replaceable tasks.
        """
        self._command = list(command)
        self._tasks = tasks
        self._restarts = restarts
        self._running: dict[JobTask, subprocess.Popen] = {}
        self._again_at: dict[JobTask, float] = {}
        self._failed_at: float | None = None
        self._output = _Output(sys.stdout.buffer)

    def start(self) -> None:
        self._again_at = {}
        self._failed_at = None
        self._running = {}
        for task in self._tasks:
            self._start(task)

    def poll(self) -> Outcome | None:
        """None while the job runs; else what it came to. Replaces the tasks that can be."""
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
            return Outcome(0, "the job is done", is_final=True)
        failed = {task: status for task, status in ended.items() if status != 0}
        for task, status in failed.items():
            if status == _USAGE:
                return Outcome(_USAGE, f"{task.name} refused its arguments", is_final=True)
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
        # Not one that only ended because it had lost another, if there is such another.
        task, status = min(broken.items(), key=lambda x: x[1] == errors.WORKER_LOST_STATUS)
        return Outcome(_shell_status(status), f"{task.name} {_how(status)}")

    def stop(self, grace_seconds: float) -> None:
        """Ends all: asks with SIGTERM, and kills what is left."""
        for process in self._running.values():
            if process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)  # A stopped one would not notice.
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline and any(p.poll() is None for p in self._running.values()):
            time.sleep(0.02)
        for process in self._running.values():
            _kill(process)
        self._output.drain()

    def _start(self, task: JobTask) -> None:
        process = subprocess.Popen(
            [sys.executable, "-IS", str(_ENTRY), str(os.getpid()), *self._command],
            # Lines appear when they are printed.
            env={"PYTHONUNBUFFERED": "1", **os.environ, **task.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C in a terminal is the supervisor's to handle; and children go with the task.
            start_new_session=True,
        )
        assert process.stdout is not None
        self._output.follow(task.name, process.stdout)
        self._running[task] = process

    def _replace(self, task: JobTask, status: int) -> Outcome | None:
        _kill(self._running.pop(task))
        delay = self._restarts.next_delay()
        how = f"{task.name} {_how(status)}"
        if delay is None:
            return Outcome(_shell_status(status), f"{how}, too often", is_final=True)
        report(f"{how}; starting it again in {delay:g} s ({self._restarts.told()})")
        self._again_at[task] = time.monotonic() + delay
        return None


class _Output:
    """Writes the lines of several processes to one stream, each whole and with a name."""

    def __init__(self, stream: IO[bytes]):
        self._stream = stream
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def follow(self, name: str, pipe: IO[bytes]) -> None:
        thread = threading.Thread(target=self._copy, args=(name, pipe), daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def drain(self) -> None:
        """Waits, briefly, until what ended processes had written is out."""
        for thread in self._threads:
            thread.join(1)

    def _copy(self, name: str, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                # Should nobody read any more, the job goes on.
                with self._lock, contextlib.suppress(OSError):
                    self._stream.write(f"{name} | ".encode() + line.rstrip(b"\n") + b"\n")
                    self._stream.flush()


class Ports:
    """Free ports of this machine, kept from everybody but those who are told.

    A bound socket that does not listen keeps others from being given its port, while a server that
    allows the reuse of addresses, as TensorFlow's does, can listen there, again and again.
    """

    def __init__(self, count: int):
        self._sockets = []
        for _ in range(count):
            holder = socket.socket()
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", 0))
            self._sockets.append(holder)

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{holder.getsockname()[1]}" for holder in self._sockets]


def make_tasks(
    num_workers: int, num_parameter_servers: int, addresses: Sequence[str]
) -> list[JobTask]:
    """Returns the tasks of a job on this machine, each with its TF_CONFIG and its GPUs.

    Args:
      num_workers: all equal; or, with parameter servers, besides the chief that leads them.
      num_parameter_servers: 0 for a synchronous job.
      addresses: as many as tasks.

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
                    # The chief and the parameter servers compute nothing on a GPU.
                    {"TF_CONFIG": config}
                    | (worker_gpus[index] if kind == "worker" else gpus.none()),
                    ends_job=not num_parameter_servers or kind == "chief",
                    is_replaceable=bool(num_parameter_servers) and kind == "worker",
                )
            )
    return tasks


def report(line: str) -> None:
    print(f"supervisor | {line}", file=sys.stderr, flush=True)


def _kill(process: subprocess.Popen) -> None:
    """With everything it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _how(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    if status == errors.WORKER_LOST_STATUS:
        return "lost another process"
    return f"ended with status {status}"


def _shell_status(status: int) -> int:
    return status if status >= 0 else 128 - status
