"""Compares the runs of several configs: their curves, their settings, and which one is better."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.runs import plots, statistics
from rl_replicator.runs.plots import Curve, EvaluatedRun

# Settings that distinguish the tasks of one config.
_TASK = ("env",)


@dataclasses.dataclass(frozen=True)
class ComparedConfig:
    """The runs of one config, over all its tasks and seeds.

    Attributes:
      label: a letter.
      settings: the settings that differ between the compared configs.
      identity: all settings, without task and seed.
      curves: task -> curve; the only task of a learner is "".
    """

    label: str
    settings: Mapping[str, Any]
    identity: Mapping[str, Any]
    curves: Mapping[str, Curve]


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
        `is_lowest_best` is unknown.
      is_lowest_best: whether the lower figure is the better one; None if unknown.
    """

    first: str
    second: str
    steps: Mapping[str, float]
    difference: statistics.Interval
    improvement: statistics.Interval
    is_lowest_best: bool | None

    @property
    def at(self) -> str:
        """The lowest and the highest of its steps, such as "100 to 2,000"; "" without any."""
        steps = [f"{step:,.0f}" for step in sorted(self.steps.values())]
        return " to ".join(dict.fromkeys((*steps[:1], *steps[-1:])))

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


def configs(runs: Sequence[EvaluatedRun]) -> list[ComparedConfig]:
    """Groups runs by their settings, except task and seed.

    Args:
      runs: the runs from `plots.read`.

    Raises:
      UsageError: if all runs have the same config; see also `plots.curves`.
    """
    found = grouped(plots.curves(runs))
    if len(found) < 2:
        raise UsageError(
            "expected runs of at least two configs, got one; 'rl-replicator plot' draws it"
        )
    return found


def without_task(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a run without those that name its task."""
    return {name: value for name, value in settings.items() if name not in _TASK}


def grouped(drawn: Sequence[Curve], first: int = 0) -> list[ComparedConfig]:
    """Groups curves by their settings, except the task.

    Args:
      drawn: curves of any runs.
      first: position of the first label in the alphabet.
    """
    groups: dict[str, tuple[dict[str, Any], dict[str, Curve]]] = {}
    for curve in drawn:
        settings = without_task(curve.settings)
        _, curves = groups.setdefault(plots.key_of(settings), (settings, {}))
        curves[str(curve.settings.get("env", ""))] = curve
    differing = plots.differing([settings for settings, _ in groups.values()])
    return [
        ComparedConfig(
            _letter(index), {name: settings.get(name) for name in differing}, settings, curves
        )
        for index, (settings, curves) in enumerate(groups.values(), first)
    ]


def pairs(compared: Sequence[ComparedConfig]) -> list[Pair]:
    """Compares every two configs that have a task in common.

    The figure of a run is its value at the last step that all runs of the task in both configs have
    reached, interpolated between evaluations.

    Raises:
      UsageError: if no two configs have a task in common.
    """
    found = [
        _pair(one, other)
        for one, other in itertools.combinations(compared, 2)
        if one.curves.keys() & other.curves.keys()
    ]
    if not found:
        raise UsageError("expected configs with a task in common, got none; nothing to compare")
    return found


def report(compared: Sequence[ComparedConfig], found: Sequence[Pair]) -> str:
    """Returns the settings that differ, the figures of each task, and the tests.

    Args:
      compared: the result of `configs`.
      found: the result of `pairs`.
    """
    label = next(iter(compared[0].curves.values())).y_label
    names = sorted({name for one in compared for name in one.settings})
    head = ["config", *names]
    lines = _aligned(
        [head] + [[one.label, *(str(one.settings.get(n)) for n in names)] for one in compared]
    )
    rows = [["task", "steps", *(f"{label} {one.label}" for one in compared)]]
    counts = collections.Counter(task for one in compared for task in one.curves)
    for task in sorted(task for task, count in counts.items() if count > 1):
        steps: list[float | None] = [
            *sorted({pair.steps[task] for pair in found if task in pair.steps})
        ]
        for step in steps or [None]:
            cells = [_seeds(one.curves.get(task), step) for one in compared]
            rows.append([task or "-", "none in common" if step is None else f"{step:,.0f}", *cells])
    lines += ["", *_aligned(rows), ""]
    improvement = "probability of improvement [95 %]"
    lines += _aligned(
        [["pair", "tasks", "at", "difference [95 %]", improvement, "verdict"]]
        + [
            [
                f"{pair.first} - {pair.second}",
                str(len(pair.steps)),
                pair.at or "-",
                _interval(pair.difference),
                _interval(pair.improvement) if np.isfinite(pair.improvement.low) else "-",
                pair.verdict,
            ]
            for pair in found
        ]
    )
    return "\n".join(lines)


def draw(compared: Sequence[ComparedConfig], output: Path) -> None:
    """Draws the curves of all configs, one panel for each task, into a PNG.

    Args:
      compared: the result of `configs`.
      output: path of the image; its directory is created.

    Raises:
      OSError: if the image cannot be written.
    """
    panels = []
    for task in dict.fromkeys(task for one in compared for task in one.curves):
        there = [one for one in compared if task in one.curves]
        labels = [one.label for one in there]
        panels.append(plots.Panel(task, [one.curves[task] for one in there], labels))
    plots.draw(panels, output)


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"C{index + 1}"


def _pair(one: ComparedConfig, other: ComparedConfig) -> Pair:
    tasks = [task for task in one.curves if task in other.curves]
    steps = {}
    for task in tasks:
        end = min(c.curves[task].steps[-1] for c in (one, other))
        if all(plots.reach(c.curves[task].steps, end) for c in (one, other)):
            steps[task] = end
    is_lowest_best = one.curves[tasks[0]].is_lowest_best
    unknown = statistics.Interval(np.nan, np.nan, np.nan)
    if not steps:
        return Pair(one.label, other.label, steps, unknown, unknown, is_lowest_best)
    scores = [[_at(c.curves[task], step) for task, step in steps.items()] for c in (one, other)]
    difference = statistics.bootstrap(statistics.difference_of_means, *scores)
    if is_lowest_best is None:
        return Pair(one.label, other.label, steps, difference, unknown, is_lowest_best)
    better = scores[::-1] if is_lowest_best else scores
    return Pair(
        one.label,
        other.label,
        steps,
        difference,
        statistics.bootstrap(statistics.probability_of_improvement, *better),
        is_lowest_best,
    )


def _at(curve: Curve, step: float) -> np.ndarray:
    """Returns the figure of each seed at a step, [seeds]."""
    return np.array([np.interp(step, curve.steps, values) for values in curve.values])


def _seeds(curve: Curve | None, step: float | None) -> str:
    if curve is None or step is None or not plots.reach(curve.steps, step):
        return "-"
    values = _at(curve, step)
    text = _figure(values.mean())
    if len(values) > 1:
        text += f" ({_figure(values.min())} to {_figure(values.max())}, {curve.counted})"
    elif curve.runs > 1:
        text += f" ({curve.counted})"
    return text


def _figure(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _interval(one: statistics.Interval) -> str:
    return str(one) if np.isfinite(one.value) else "-"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
