"""The table of a sweep: one row for each trial, the best ones first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_replicator.runs.live_table import LiveTable, aligned
from rl_replicator.sweeps.trial import SweepTrial, TrialState


def text(trials: Sequence[SweepTrial], count: int) -> str:
    """Returns the table.

    Args:
      trials: the trials that have begun.
      count: total number of trials.
    """
    states = {state: sum(one.state is state for one in trials) for state in TrialState}
    ended = len(trials) - states[TrialState.RUNNING] - states[TrialState.PAUSED]
    parts = [f"{ended} of {count} trials ended"]
    parts += [f"{number} {state.value}" for state, number in states.items() if number]
    options = list(trials[0].values) if trials else []
    score = next((found for one in trials if (found := one.score())), None)
    figure = score.figure if score else "figure"
    rows = [["trial", *options, "state", "evaluations", "steps", figure, "seeds"]]
    rows += [_row(trial) for trial in ranked(trials)]
    if any(len(trial.lineage) > 1 for trial in trials):
        origins = [trial.lineage[-1].origin for trial in ranked(trials)]
        rows = [[*row, end] for row, end in zip(rows, ["from", *origins], strict=True)]
    return "\n".join([", ".join(parts), *aligned(rows)])


def ranked(trials: Sequence[SweepTrial]) -> list[SweepTrial]:
    """Returns the trials: first those that are done, then running, paused, stopped, and failed.

    Each group is sorted by the newest evaluation, the best one first; unless they are done, trials
    with more evaluations come before others. Trials without an evaluation, such as those whose runs
    were deleted, come last in their group.
    """
    order = [
        *(TrialState.DONE, TrialState.RUNNING, TrialState.PAUSED),
        *(TrialState.STOPPED, TrialState.FAILED),
    ]

    def key(trial: SweepTrial) -> tuple[int, bool, int, float]:
        evaluated, score = trial.evaluated(), trial.score()
        if score is None or not evaluated.count:
            return order.index(trial.state), True, 0, float(trial.number)
        value = float(evaluated.means[-1])
        return (
            order.index(trial.state),
            False,
            0 if trial.state is TrialState.DONE else -evaluated.count,
            -value if score.is_highest_best else value,
        )

    return sorted(trials, key=key)


def _row(trial: SweepTrial) -> list[str]:
    evaluated = trial.evaluated()
    values = map(_rounded, trial.values.values())
    cells = [str(trial.number), *values, trial.state.value, str(evaluated.count)]
    if not evaluated.count:
        return [*cells, "", "", ""]
    last = evaluated.scores[:, -1]
    spread = f"{last.min():.4g} to {last.max():.4g}" if len(last) > 1 else ""
    return [*cells, f"{evaluated.steps[-1]:,}", f"{np.mean(last):.4g}", spread]


def _rounded(value: str) -> str:
    """Returns a value of an option; a decimal fraction is rounded to six significant digits."""
    try:
        return f"{float(value):.6g}" if "." in value else value
    except ValueError:
        return value


class SweepBoard:
    """Redraws the table on a terminal; elsewhere, prints a line whenever a trial has changed."""

    def __init__(self, trials: Sequence[SweepTrial], count: int):
        """Draws nothing yet.

        Args:
          trials: the trials that have begun; the caller changes the list and its items.
          count: total number of trials.
        """
        self._trials, self._count = trials, count
        self._table = LiveTable()

    def note(self, trial: SweepTrial) -> None:
        """Shows that the state of a trial has changed."""
        if self._table.is_live:
            self._table.expedite()
            self.refresh()
            return
        values = ", ".join(f"{option} {_rounded(value)}" for option, value in trial.values.items())
        about = f": {trial.reason}" if trial.reason else ""
        if trial.state is TrialState.RUNNING and len(trial.lineage) > 1:
            about = f", from {trial.lineage[-1].origin}"
        if trial.state in (TrialState.DONE, TrialState.PAUSED, TrialState.STOPPED):
            evaluated, score = trial.evaluated(), trial.score()
            if score and evaluated.count:
                about = (
                    f" after {evaluated.steps[-1]:,} steps: {score.figure} "
                    f"{evaluated.means[-1]:.4g}"
                )
        verb = "has" if trial.state is TrialState.FAILED else "is"
        self._table.print(f"trial {trial.number} ({values}) {verb} {trial.state.value}{about}")

    def refresh(self) -> None:
        """Redraws the table on a terminal, if it is due."""
        if self._table.is_due():
            self._table.refresh(text(self._trials, self._count).splitlines())

    def close(self) -> None:
        """Shows the whole table one last time."""
        self._table.close(text(self._trials, self._count))
