"""Runs processes side by side, each on its share of the processors, and ends them cleanly."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agents.suites.progress import RunStatus, State
from rl_replicator.errors import DISK_STATUS, DiskError
from rl_replicator.jobs.run_process import RunProcess, Slot, end_all, slots
from rl_replicator.processes import signals

_POLL_SECONDS = 0.2


@dataclasses.dataclass
class _Process:
    status: RunStatus
    process: RunProcess
    slot: Slot


class Scheduler:
    """Runs one process for each run; one that fails does not end the others, but a full disk does.

    Ctrl-C, SIGTERM and SIGHUP end all of them cleanly.
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
          statuses: the statuses of the runs; their states are updated.

        Returns:
          The number of the signal that ended it; None if all runs ended.

        Raises:
          DiskError: if a run ends because the disk is full. The others are saved, if there is space
            for that.
        """
        waiting = [status for status in statuses if status.state is State.WAITING]
        with signals.handled(lambda number, _: signals.note(number, self._signals)):
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
                # If this process fails, the runs still save.
                end_all([one.process for one in self._running], self._is_urgent)
        return self._signals[0] if self._signals else None

    def _start(self, status: RunStatus) -> None:
        slot = self._free.pop(0)
        log = self._logs / f"{status.run.name}.log"
        process = RunProcess(self._command(status), log, slot)
        self._running.append(_Process(status, process, slot))
        self._set(status, State.RUNNING)

    def _reap(self) -> None:
        for one in list(self._running):
            code = one.process.poll()
            if code is None:
                continue
            self._running.remove(one)
            self._free.append(one.slot)
            if code == 0:
                self._set(one.status, State.DONE)
            elif self._signals:
                self._set(one.status, State.WAITING)  # Stopped and saved, or killed here.
            elif code == DISK_STATUS:  # The next runs would end in the same way.
                raise DiskError(
                    f"expected space on the disk, but {one.status.run} {one.process.reason()}; the "
                    "same command continues the suite"
                )
            else:
                self._set(one.status, State.FAILED, one.process.reason())

    def _end(self) -> None:
        """Asks all processes to end, and waits; a second signal or a long wait kills them."""
        end_all([one.process for one in self._running], self._is_urgent, self._on_look)

    def _is_urgent(self) -> bool:
        return len(self._signals) > 1

    def _set(self, status: RunStatus, state: State, reason: str = "") -> None:
        status.state, status.reason = state, reason
        self._on_change(status)
