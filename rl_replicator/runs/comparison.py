"""Compares the runs of several configs: their settings, their figures, and which one is better."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from rl_replicator.runs import evaluations, statistics
from rl_replicator.runs.evaluations import ComparedConfig, Curve
from rl_replicator.runs.statistics import aligned, number

# The columns of a table of pairs, after their names.
COLUMNS = ("tasks", "at", "difference [95 %]", "probability of improvement [95 %]", "verdict")

# Before a figure between two evaluations.
INTERPOLATED = "~"


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two configs, compared over the tasks that both have.

    Attributes:
      first: label of one.
      second: label of the other.
      steps: task -> the last step that the runs of both have reached. A task is missing if they
        have no step in common.
      difference: mean of the first one minus that of the second one, over tasks and seeds; NaN
        without a step in common.
      improvement: probability that a run of the first one has the better figure; NaN if
        `is_lowest_best` is unknown, or there is no interval.
      is_lowest_best: whether the lower figure is the better one; None if unknown.
    """

    first: str
    second: str
    steps: Mapping[str, float]
    difference: statistics.Interval
    improvement: statistics.Interval
    is_lowest_best: bool | None

    @property
    def cells(self) -> list[str]:
        """Its row in a table with `COLUMNS`."""
        steps = [f"{step:,.0f}" for step in sorted(self.steps.values())]
        at = " to ".join(dict.fromkeys((*steps[:1], *steps[-1:]))) or "-"
        return [str(len(steps)), at, str(self.difference), str(self.improvement), self.verdict]

    @property
    def verdict(self) -> str:
        """Which config has the better figure, the higher one if unknown; or why it is undecided."""
        if not self.steps:
            return "no steps in common"
        low, high = self.difference.low, self.difference.high
        if not np.isfinite(low):
            return "one seed: no interval"
        if low <= 0 <= high:
            return "not distinguishable with these seeds"
        higher, lower = (self.first, self.second) if low > 0 else (self.second, self.first)
        return f"{lower} is lower" if self.is_lowest_best else f"{higher} is higher"


def pairs(compared: Sequence[ComparedConfig]) -> list[Pair]:
    """Compares every two configs that have a task in common.

    The figure of a run is its value at the last step that all runs of the task in both configs have
    reached, interpolated between evaluations.
    """
    return [
        _pair(one, other)
        for one, other in itertools.combinations(compared, 2)
        if one.curves.keys() & other.curves.keys()
    ]


def report(compared: Sequence[ComparedConfig], found: Sequence[Pair]) -> str:
    """Returns the settings that differ, the figures of each task, and the tests.

    Args:
      compared: the result of `evaluations.configs`.
      found: the result of `pairs`.
    """
    label = next(iter(compared[0].curves.values())).y_label
    names = sorted({name for one in compared for name in one.settings})
    head = ["config", *names]
    lines = aligned(
        [head] + [[one.label, *(str(one.settings.get(n)) for n in names)] for one in compared]
    )
    rows = [["task", "steps", *(f"{label} {one.label}" for one in compared)]]
    counts = collections.Counter(task for one in compared for task in one.curves)
    for task in sorted(task for task, count in counts.items() if count > 1):
        steps: list[float | None] = [
            *sorted({pair.steps[task] for pair in found if task in pair.steps})
        ]
        for step in steps or [None]:
            at = "none in common" if step is None else f"{step:,.0f}"
            rows.append(
                [task or "-", at, *(_seeds(one.curves.get(task), step) for one in compared)]
            )
    lines += ["", *aligned(rows), ""]
    if any(cell.startswith(INTERPOLATED) for row in rows for cell in row):
        lines += [f"{INTERPOLATED}: not measured at this step, but between two evaluations", ""]
    tested = [[f"{pair.first} - {pair.second}", *pair.cells] for pair in found]
    lines += aligned([["pair", *COLUMNS], *tested])
    return "\n".join(lines)


def _pair(one: ComparedConfig, other: ComparedConfig) -> Pair:
    tasks = [task for task in one.curves if task in other.curves]
    steps = {}
    for task in tasks:
        end = min(c.curves[task].steps[-1] for c in (one, other))
        if all(evaluations.reach(c.curves[task].steps, end) for c in (one, other)):
            steps[task] = end
    is_lowest_best = one.curves[tasks[0]].is_lowest_best
    difference = improvement = statistics.Interval(np.nan, np.nan, np.nan)
    scores = [[_at(c.curves[task], step) for task, step in steps.items()] for c in (one, other)]
    if steps:
        difference = statistics.bootstrap(statistics.difference_of_means, *scores)
    if is_lowest_best is not None and np.isfinite(difference.low):
        better = scores[::-1] if is_lowest_best else scores
        improvement = statistics.bootstrap(statistics.probability_of_improvement, *better)
    return Pair(one.label, other.label, steps, difference, improvement, is_lowest_best)


def _at(curve: Curve, step: float) -> np.ndarray:
    """Returns the figure of each seed at a step, [seeds]."""
    return np.array([np.interp(step, curve.steps, values) for values in curve.values])


def _seeds(curve: Curve | None, step: float | None) -> str:
    if curve is None or step is None or not evaluations.reach(curve.steps, step):
        return "-"
    values = _at(curve, step)
    mark = "" if step in curve.steps[curve.is_measured] else INTERPOLATED
    text = f"{mark}{number(values.mean())}"
    if len(values) > 1:
        text += f" ({number(values.min())} to {number(values.max())}, {curve.counted})"
    elif curve.runs > 1:
        text += f" ({curve.counted})"
    return text
