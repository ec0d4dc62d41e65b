"""Runs processes side by side, each on its share of the processors, and ends them cleanly."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agents.suites.progress import RunStatus, State
from rl_replicator.jobs import task_entry

_POLL_SECONDS = 0.2
# `rl-replicator train` saves and ends within ten seconds of SIGINT on an idle machine.
_SECONDS_TO_END = 120.0
_THREADS = "TF_NUM_INTRAOP_THREADS"
_ENTRY = Path(task_entry.__file__)


@dataclasses.dataclass(frozen=True)
class Slot:
    """A place for one process.

    Attributes:
      processors: indices of those that the process may use; empty for all.
    """

    processors: tuple[int, ...] = ()

    def environment(self) -> dict[str, str]:
        """Returns what is added to the environment of the process.

        TensorFlow would otherwise start threads for all processors of the machine.
        """
        if not self.processors or _THREADS in os.environ:
            return {}
        return {_THREADS: str(max(1, len(self.processors) // 2))}


def slots(parallel: int) -> list[Slot]:
    """Divides the processors of this process among `parallel` processes at a time.

    Args:
      parallel: number of processes. One process gets all processors. If there are more processes
        than processors, several processes share one.
    """
    if parallel == 1:
        return [Slot()]
    processors = sorted(os.sched_getaffinity(0))
    if parallel >= len(processors):
        return [Slot((processors[index % len(processors)],)) for index in range(parallel)]
    return [Slot(tuple(processors[index::parallel])) for index in range(parallel)]


@dataclasses.dataclass
class _Process:
    status: RunStatus
    popen: subprocess.Popen
    slot: Slot


class Scheduler:
    """Runs one process for each run; a process that fails does not end the others.

    Processes cannot outlive this one. They are in process groups of their own, so that Ctrl-C
    reaches them once only, through this class.
    """

    def __init__(
        self,
        command: Callable[[RunStatus], Sequence[str]],
        logs: Path,
        parallel: int,
        on_change: Callable[[RunStatus], None],
        on_look: Callable[[], None],
    ):
        """Starts nothing yet.

        Args:
          command: returns the command of a run.
          logs: directory of the files that receive the output, `NAME.log` for each run.
          parallel: number of processes at a time.
          on_change: called when the state of a run has changed.
          on_look: called five times a second.
        """
        self._command = command
        self._logs = logs
        self._free = slots(parallel)
        self._on_change = on_change
        self._on_look = on_look
        self._running: list[_Process] = []
        self._signals: list[int] = []

    def run(self, statuses: Sequence[RunStatus]) -> int | None:
        """Runs all that wait, in order, and waits for them. Called by the main thread.

        Args:
          statuses: of the runs; their states are updated.

        Returns:
          The number of the signal that ended it, SIGINT or SIGTERM; None if all runs ended.
        """
        waiting = [status for status in statuses if status.state is State.WAITING]
        handled = (signal.SIGINT, signal.SIGTERM)
        before: Mapping[int, object] = {
            number: signal.signal(number, lambda number, _: self._signals.append(number))
            for number in handled
        }
        try:
            while (waiting and not self._signals) or self._running:
                if self._signals:
                    self._end()
                while waiting and self._free and not self._signals:
                    self._start(waiting.pop(0))
                self._reap()
                self._on_look()
                time.sleep(_POLL_SECONDS)
        finally:
            for process in self._running:  # After an error of our own.
                process.popen.kill()
            for number, handler in before.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
        return self._signals[0] if self._signals else None

    def _start(self, status: RunStatus) -> None:
        slot = self._free.pop(0)
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / f"{status.run.name}.log").open("ab") as log:
            popen = subprocess.Popen(
                [sys.executable, "-IS", str(_ENTRY), str(os.getpid()), *self._command(status)],
                env={"PYTHONUNBUFFERED": "1", **os.environ, **slot.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        if slot.processors:
            os.sched_setaffinity(popen.pid, slot.processors)
        self._running.append(_Process(status, popen, slot))
        self._set(status, State.RUNNING)

    def _reap(self) -> None:
        for process in list(self._running):
            code = process.popen.poll()
            if code is None:
                continue
            self._running.remove(process)
            self._free.append(process.slot)
            if code == 0:
                self._set(process.status, State.DONE)
            elif self._signals:
                self._set(process.status, State.WAITING)  # Stopped and saved, or killed by us.
            else:
                self._set(process.status, State.FAILED, self._reason(process.status, code))

    def _end(self) -> None:
        """Asks all processes to end, and waits; a second signal or a long wait kills them."""
        for process in self._running:
            process.popen.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _SECONDS_TO_END
        while any(process.popen.poll() is None for process in self._running):
            if len(self._signals) > 1 or time.monotonic() > deadline:
                for process in self._running:
                    if process.popen.poll() is None:
                        os.killpg(process.popen.pid, signal.SIGKILL)
            self._on_look()
            time.sleep(_POLL_SECONDS)

    def _reason(self, status: RunStatus, code: int) -> str:
        how = f"exit status {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
        log = self._logs / f"{status.run.name}.log"
        lines = log.read_text(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1].strip() if lines else 'no output'} ({log})"

    def _set(self, status: RunStatus, state: State, reason: str = "") -> None:
        status.state, status.reason = state, reason
        self._on_change(status)
