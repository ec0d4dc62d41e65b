"""Runs the trials of a sweep in parallel, and stops those that are not worth continuing."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.errors import DISK_STATUS, CheckpointError, DiskError
from rl_replicator.jobs.run_process import SECONDS_TO_END, RunProcess, Slot, end_all, slots
from rl_replicator.processes import signals
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.sweeps.trial import SweepTrial, TrialState

_LOG = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
# If this many trials fail before one has run without failure, the rest would fail as well.
_HOPELESS = 3
# Exit status of a run that the sweep has interrupted.
_INTERRUPTED = 128 + signal.SIGINT
# Exit statuses of a run that was killed or terminated by a user, or by the kernel because memory
# was short.
_KILLED = (
    -signal.SIGKILL,
    *(status for number in signals.ENDING for status in (-number, 128 + number)),
)
# Several processes share a GPU, so none may allocate all of its memory.
_VARIABLES = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


class TrialScheduler(Protocol):
    """Decides which trials run, and for how long.

    Attributes:
      when_cut: state of a trial whose processes were interrupted because of `report`.
    """

    when_cut: TrialState

    def ask(self) -> SweepTrial:
        """Returns a new trial."""

    def begin(self, trial: SweepTrial) -> None:
        """Notes that the processes of a trial are about to start."""

    def report(self, trial: SweepTrial, values: Sequence[float]) -> bool:
        """Records the values of a running trial's evaluations; returns whether to end it now.

        Args:
          trial: the trial.
          values: the values of all its evaluations so far; higher is better.
        """

    def finish(self, trial: SweepTrial, value: float | None) -> None:
        """Records how a trial has ended, as its `state` says.

        Args:
          trial: the trial.
          value: the value at its last evaluation; None if it is not done.
        """

    def advance(self, trials: Sequence[SweepTrial]) -> Sequence[SweepTrial]:
        """Returns trials to continue, once none is running or waiting to start."""


@dataclasses.dataclass
class _Live:
    """A trial whose processes are running.

    Attributes:
      trial: the trial.
      slot: the processors of its processes.
      processes: one for each seed whose run has steps left.
      verdict: the state in which it will end; None while that is unknown.
      deadline: time at which its processes are killed; None while they need not end.
    """

    trial: SweepTrial
    slot: Slot
    processes: list[RunProcess]
    verdict: TrialState | None = None
    deadline: float | None = None

    @property
    def has_ended(self) -> bool:
        return all(process.poll() is not None for process in self.processes)

    def end(self, verdict: TrialState) -> None:
        """Interrupts its processes, which save and end."""
        self.verdict = verdict
        self.deadline = time.monotonic() + SECONDS_TO_END
        for process in self.processes:
            process.interrupt()


class SweepRunner:
    """Runs trials until there are enough of them."""

    def __init__(
        self,
        scheduler: TrialScheduler,
        command: Callable[[SweepTrial, int | None], Sequence[str]],
        logs: Path,
        parallel: int,
        on_change: Callable[[SweepTrial], None],
        on_look: Callable[[], None],
    ):
        """Starts nothing yet.

        Args:
          scheduler: chooses the trials.
          command: returns the command of a trial's run with a seed.
          logs: directory of the files that receive the output of the runs.
          parallel: number of trials at a time.
          on_change: called when the state of a trial has changed.
          on_look: called five times a second.
        """
        self._scheduler = scheduler
        self._command = command
        self._logs = logs
        self._free = slots(parallel)
        self._on_change = on_change
        self._on_look = on_look
        self._waiting: list[SweepTrial] = []
        # Numbers of the trials that wait because other processes train in their directories.
        self._taken: set[int] = set()
        self._live: list[_Live] = []
        # Number of a trial that was killed -> its furthest progress then, see `_progress`.
        self._killed: dict[int, tuple[int, ...]] = {}
        self._signals: list[int] = []
        self._failures_at_first = 0

    def run(self, trials: list[SweepTrial], count: int) -> int | None:
        """Continues interrupted trials and begins new ones. Called by the main thread.

        Args:
          trials: all trials so far, whose states are updated; new ones are added.
          count: total number of trials.

        Returns:
          The number of the signal that ended it; None if all trials have ended, or the first ones
          failed one after the other.

        Raises:
          DiskError: if the disk is full. Running trials are saved, if there is space for that, and
            are continued by the next call.
        """
        if any(trial.state not in (TrialState.RUNNING, TrialState.FAILED) for trial in trials):
            self._failures_at_first = -1  # An earlier process has seen that trials can run.
        self._waiting = [trial for trial in trials if trial.state is TrialState.RUNNING]
        with signals.handled(lambda number, _: signals.note(number, self._signals)):
            try:
                self._run(trials, count)
            finally:
                # Even after an error in this process, the runs save their state.
                end_all(
                    [process for one in self._live for process in one.processes],
                    lambda: len(self._signals) > 1,
                )
        return self._signals[0] if self._signals else None

    def _run(self, trials: list[SweepTrial], count: int) -> None:
        while self._failures_at_first < _HOPELESS:
            while self._free and not self._signals and (trial := self._next(trials, count)):
                self._start(trial)
            if not self._live and self._signals:
                break
            if not self._live and not self._waiting:
                self._waiting = list(self._scheduler.advance(trials))
                if not self._waiting:
                    break
                continue
            self._look()
            self._on_look()
            time.sleep(_POLL_SECONDS)

    def _next(self, trials: list[SweepTrial], count: int) -> SweepTrial | None:
        """Returns the trial to start next: a waiting one, or else a new one; None if there is none.

        A trial keeps waiting while another process trains in its directory.
        """
        for trial in self._waiting:
            taken = [
                trial.run_dir(s) for s in trial.seeds if RunDirectory(trial.run_dir(s)).is_live
            ]
            if not taken:
                self._waiting.remove(trial)
                self._taken.discard(trial.number)
                return trial
            if trial.number not in self._taken:
                self._taken.add(trial.number)
                _LOG.warning(
                    "trial %d waits, because another process trains in %s", trial.number, taken[0]
                )
        if len(trials) >= count:
            return None
        trials.append(self._scheduler.ask())
        return trials[-1]

    def _start(self, trial: SweepTrial) -> None:
        slot = self._free.pop(0)
        self._scheduler.begin(trial)
        live = _Live(trial, slot, [])
        self._live.append(live)  # Before the first process, as the second may fail to start.
        for seed in trial.seeds:
            if trial.is_beyond(seed):
                continue  # Its evaluations up to the last step of the sweep count.
            log = self._logs / f"{trial.name}-{trial.run_dir(seed).name}.log"
            live.processes.append(RunProcess(self._command(trial, seed), log, slot, _VARIABLES))
        self._on_change(trial)

    def _look(self) -> None:
        """Judges the running trials, and closes those whose processes have ended."""
        for one in list(self._live):
            if self._signals and one.verdict is None:
                one.end(TrialState.RUNNING)
            if one.verdict is None:
                self._judge(one)
            if one.deadline is not None and (
                time.monotonic() > one.deadline or len(self._signals) > 1
            ):
                for process in one.processes:
                    process.kill()
            if one.has_ended:
                self._close(one)

    def _judge(self, one: _Live) -> None:
        """Decides how a trial ends, if that can be decided now."""
        failed = [process for process in one.processes if process.poll() not in (None, 0)]
        if failed:
            one.end(self._after_failure(one.trial, failed))
            return
        # Checked before the values are read, so that they include the last rows.
        has_ended = all(process.poll() == 0 for process in one.processes)
        values = _values(one.trial)
        if self._scheduler.report(one.trial, values) and not has_ended:
            one.end(self._scheduler.when_cut)
        elif has_ended and not one.trial.has_evaluations():
            one.trial.reason = "ended without an evaluation"
            one.verdict = TrialState.FAILED
        elif has_ended:
            one.verdict = TrialState.DONE

    def _close(self, one: _Live) -> None:
        if one.verdict is None:
            return  # It has ended since it was judged.
        self._live.remove(one)
        self._free.append(one.slot)
        if one.verdict is TrialState.PAUSED:
            one.verdict = self._paused(one)
        elif one.verdict is TrialState.STOPPED and not any(p.poll() for p in one.processes):
            one.verdict = TrialState.DONE  # Its runs had finished before they were interrupted.
        one.trial.state = one.verdict
        if one.verdict is TrialState.RUNNING:
            if not self._signals:
                self._waiting.append(one.trial)
            return  # If the sweep was stopped, the next command continues the trial.
        self._killed.pop(one.trial.number, None)
        is_done = one.verdict is TrialState.DONE
        self._scheduler.finish(one.trial, _values(one.trial)[-1] if is_done else None)
        self._on_change(one.trial)
        self._count_failures(one.trial)

    def _paused(self, one: _Live) -> TrialState:
        """Returns the state of a trial whose processes were interrupted for a pause."""
        failed = [process for process in one.processes if process.poll() not in (0, _INTERRUPTED)]
        if failed and not self._signals:
            return self._after_failure(one.trial, failed)
        if failed:  # Killed by a second Ctrl-C: it has not saved, and will be continued.
            return TrialState.RUNNING
        return TrialState.PAUSED if any(p.poll() for p in one.processes) else TrialState.DONE

    def _after_failure(self, trial: SweepTrial, failed: Sequence[RunProcess]) -> TrialState:
        """Returns the state of a trial some of whose processes have failed.

        A killed trial continues, unless it has made no progress since it was last killed: then its
        settings may need more memory than there is, for example.

        Raises:
          DiskError: if the disk is full, which says nothing about the trial.
        """
        # The most informative failure comes first.
        first = min(failed, key=lambda one: (one.poll() != DISK_STATUS, one.poll() in _KILLED))
        if first.poll() == DISK_STATUS:
            raise DiskError(
                f"expected space on the disk, but trial {trial.number} {first.reason()}; the same "
                "command continues the sweep"
            )
        progress = _progress(trial)
        before = self._killed.get(trial.number, (-1,) * len(progress))
        furthest = tuple(map(max, progress, before))
        if first.poll() in _KILLED and furthest != before:
            self._killed[trial.number] = furthest
            _LOG.warning("trial %d %s; it continues", trial.number, first.reason())
            return TrialState.RUNNING
        trial.reason = first.reason()
        return TrialState.FAILED

    def _count_failures(self, trial: SweepTrial) -> None:
        if trial.state is not TrialState.FAILED:
            self._failures_at_first = -1
        elif self._failures_at_first >= 0:
            self._failures_at_first += 1


def _progress(trial: SweepTrial) -> tuple[int, ...]:
    """Returns the progress of a trial: its evaluations, and the saved steps of each run.

    Evaluations alone are not enough, because a killed run removes those beyond its checkpoint.
    """
    saved = []
    for seed in trial.seeds:
        info = None
        with contextlib.suppress(CheckpointError):  # It is damaged; the run uses an older one.
            info = Checkpointer(RunDirectory(trial.run_dir(seed)).checkpoints).latest()
        saved.append(0 if info is None else info.step)
    return trial.evaluated().count, *saved


def _values(trial: SweepTrial) -> list[float]:
    """Returns the mean over the seeds at each evaluation, negated if the lowest is best."""
    score = trial.score()
    if score is None:
        return []
    means = trial.evaluated().means
    return (means if score.is_highest_best else -means).tolist()
