"""Plots of the evaluations of runs."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.runs import atomic_file
from rl_replicator.runs.metrics import WALL_TIME, read_metrics
from rl_replicator.runs.plain_data import flat
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import Score, rows_that_count

_LOG = logging.getLogger("rl_replicator")
# Groups of metrics that hold evaluations; a run has one of them.
EVALUATION_GROUPS = ("evaluation", "evaluator")
# Options that are not in a run's identity, because a run may be continued with other values, but
# that may make a difference.
_OPTIONS = ("replicas", "actors", "envs_per_actor", "launch", "env_engine")
_SEEDS = ("seed", "config.seed")
# What is trained, and on which task, comes first in labels and titles.
_HEADS = ("trainable", "env")
_MOST_NAMED_SETTINGS = 2
# Numbers from here on, such as 1e300, are not written as integers.
_LARGE = 2**53
_MOST_COLUMNS = 3
_BAND = "line: mean over seeds, band: lowest to highest seed"


@dataclasses.dataclass(frozen=True)
class Curve:
    """The evaluations of runs that differ only in their seed.

    Attributes:
      settings: the settings that the runs share.
      runs: number of runs.
      seeds: number of different seeds; a run without a seed counts as one of its own.
      steps: [T], increasing; up to the end of the shortest run.
      values: [seeds, T] figure at these steps, interpolated between the evaluations of each run;
        the mean over the runs of a seed, which are not independent.
      x_label: what the steps are.
      y_label: what the figure is.
      is_lowest_best: whether a lower figure is better according to the runs; None if unknown.
      left_out: runs without a step in common with the others; no other attribute includes them.
    """

    settings: Mapping[str, Any]
    runs: int
    seeds: int
    steps: np.ndarray
    values: np.ndarray
    x_label: str
    y_label: str
    is_lowest_best: bool | None
    left_out: Sequence[EvaluatedRun] = ()

    @property
    def counted(self) -> str:
        """The number of seeds in words, such as "2 seeds", or "3 runs of 2 seeds"."""
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return seeds if self.runs == self.seeds else f"{self.runs} runs of {seeds}"


@dataclasses.dataclass(frozen=True)
class Panel:
    """A part of a figure: curves of one figure over one kind of steps, each with its label."""

    title: str
    curves: Sequence[Curve]
    labels: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Series:
    """One figure of one run.

    Attributes:
      steps: [T], increasing.
      values: [T] figure at these steps, finite.
      x_label: what the steps are.
      y_label: what the figure is.
      is_lowest_best: whether a lower figure is better according to the run; None if unknown.
    """

    steps: np.ndarray
    values: np.ndarray
    x_label: str
    y_label: str
    is_lowest_best: bool | None = None


@dataclasses.dataclass(frozen=True, eq=False)  # Arrays cannot be compared by `in`.
class EvaluatedRun:
    """A run with one figure of its evaluations.

    Attributes:
      settings: the settings that distinguish it from others, except its seed.
      seed: the seed of the run; None if it has none.
      series: the figure.
    """

    settings: Mapping[str, Any]
    seed: Any
    series: Series

    @property
    def why_apart(self) -> str:
        """Why it is left out, if it has no step in common with the runs of other seeds."""
        first, last = self.series.steps[[0, -1]]
        task = f" on {self.settings['env']}" if "env" in self.settings else ""
        return (
            f"expected evaluations of seed {self.seed}{task} at steps of its other seeds, got them "
            f"at {first:,.0f} to {last:,.0f} {self.series.x_label}"
        )


def read(run_dir: Path, figure: str | None = None) -> EvaluatedRun:
    """Reads the evaluations of a run.

    Args:
      run_dir: its directory.
      figure: which figure of the evaluations to read; None for the run's score, or the first one
        if it has none.

    Raises:
      UsageError: if it is not the directory of a run, has no evaluations yet, or lacks the figure.
    """
    config = RunDirectory(run_dir).config()
    found = _evaluations(run_dir, figure, Score.of(config))
    return EvaluatedRun(settings_of(config), seed_of(config), found)


def curves(runs: Sequence[EvaluatedRun]) -> list[Curve]:
    """Groups runs that share all settings but the seed.

    A warning names each run that has no step in common with the others of its group.

    Args:
      runs: the runs from `read`.

    Raises:
      UsageError: if the runs have different figures, or count different kinds of steps.
    """
    labels = {(run.series.x_label, run.series.y_label) for run in runs}
    if len(labels) > 1:
        raise UsageError(
            "expected runs with the same figure and kind of steps, got "
            f"{', '.join(f'{y} over {x}' for x, y in sorted(labels))}; choose a --figure that all "
            "have, or plot them separately"
        )
    found = merged(runs)
    for one in [one for curve in found for one in curve.left_out]:
        _LOG.warning("left out seed %s: %s", one.seed, one.why_apart)
    return found


def merged(evaluated: Sequence[EvaluatedRun]) -> list[Curve]:
    """Groups the series of runs that have equal settings.

    Args:
      evaluated: runs with the same figure and kind of steps.

    Returns:
      One curve for each set of settings, in the order of the runs. It includes the largest number
      of runs that have a step in common.
    """
    groups: dict[str, list[EvaluatedRun]] = {}
    for one in evaluated:
        groups.setdefault(key_of(one.settings), []).append(one)
    told = {one.series.is_lowest_best for one in evaluated} - {None}
    is_lowest_best = told.pop() if len(told) == 1 else None
    found = []
    for key, everyone in groups.items():
        members = _overlapping(everyone)
        runs = [one.series for one in members]
        end = min(run.steps[-1] for run in runs)
        steps = np.unique(np.concatenate([run.steps for run in runs]))
        steps = steps[(steps <= end) & (steps >= max(run.steps[0] for run in runs))]
        seeds: dict[str, list[np.ndarray]] = {}
        for index, one in enumerate(members):
            seed = f"run {index}" if one.seed is None else repr(one.seed)
            values = np.interp(steps, one.series.steps, one.series.values)
            seeds.setdefault(seed, []).append(values)
        found.append(
            Curve(
                json.loads(key),
                len(runs),
                len(seeds),
                steps,
                np.stack([np.mean(own, axis=0) for own in seeds.values()]),
                runs[0].x_label,
                runs[0].y_label,
                is_lowest_best,
                [one for one in everyone if one not in members],
            )
        )
    return found


def reach(steps: np.ndarray, step: float) -> bool:
    """Returns whether a step lies within the steps of a curve, which has no figure elsewhere."""
    return bool(steps[0] <= step <= steps[-1])


def _overlapping(runs: Sequence[EvaluatedRun]) -> list[EvaluatedRun]:
    """Returns the largest group of runs with a step in common; of several, that of the latest."""
    ends = sorted((one.series.steps[-1] for one in runs), reverse=True)
    return max(([one for one in runs if reach(one.series.steps, end)] for end in ends), key=len)


def plot(runs: Sequence[EvaluatedRun], output: Path) -> Path:
    """Draws evaluations over steps, one line for each set of settings, into a PNG.

    Args:
      runs: the runs from `read`. Those that differ only in their seed become one line with a band
        from the lowest to the highest seed.
      output: path of the image; its directory is created.

    Returns:
      `output`.

    Raises:
      UsageError: see `curves`.
      OSError: if the image cannot be written.
    """
    drawn = curves(runs)
    settings = [curve.settings for curve in drawn]
    draw([Panel(_title(settings), drawn, short_labels(settings))], output)
    return output


def draw(panels: Sequence[Panel], output: Path) -> None:
    """Draws panels of curves into a PNG.

    Args:
      panels: at least one.
      output: path of the image; its directory is created.

    Raises:
      OSError: if the image cannot be written.
    """
    # Not pyplot, which chooses a GUI backend and keeps every figure.
    from matplotlib.figure import Figure

    columns = min(len(panels), _MOST_COLUMNS)
    rows = -(-len(panels) // columns)
    canvas = Figure(figsize=(2 + 6 * columns, 5 * rows), dpi=120, layout="constrained")
    places = list(canvas.subplots(rows, columns, squeeze=False).flat)
    for axes, panel in zip(places, panels, strict=False):
        _draw_panel(axes, panel)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    with atomic_file.replacing(output) as new:
        canvas.savefig(new, format="png")


def _draw_panel(axes: Any, panel: Panel) -> None:
    """Draws curves with bands over their seeds."""
    for curve, label in zip(panel.curves, panel.labels, strict=True):
        _draw(axes, curve, label)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.curves[0].x_label)
    axes.set_ylabel(f"{panel.curves[0].y_label} (evaluation)")
    axes.xaxis.set_major_formatter(lambda steps, _: f"{steps:,.0f}")
    axes.set_xlim(left=0)
    if all(curve.values.min() >= 0 for curve in panel.curves):
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    several = any(curve.seeds > 1 for curve in panel.curves)
    axes.legend(loc="lower right", frameon=False, title=_BAND if several else None)


def _draw(axes: Any, curve: Curve, label: str) -> None:
    (line,) = axes.plot(
        curve.steps,
        curve.values.mean(axis=0),
        marker="o" if len(curve.steps) <= 40 else None,
        markersize=3,
        label=f"{label} ({curve.counted})" if label else curve.counted,
    )
    if curve.seeds > 1:
        low, high = curve.values.min(axis=0), curve.values.max(axis=0)
        axes.fill_between(curve.steps, low, high, color=line.get_color(), alpha=0.2, lw=0)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that distinguish a run from others, except its seed, by dotted name.

    They are the requested settings: the values that a run has derived from its task would make the
    runs of each task a different config.

    Args:
      config: the config from `RunDirectory.config`.
    """
    identity, options = config["identity"], config.get("options", {})
    asked = {"agent": options.get("agent"), "pixels": options.get("frame")}
    settings = flat({**identity, **{name: one for name, one in asked.items() if one}})
    settings.update({name: options[name] for name in _OPTIONS if name in options})
    return {name: _one_spelling(value) for name, value in settings.items() if name not in _SEEDS}


def key_of(settings: Mapping[str, Any]) -> str:
    """Returns a key of settings, which is equal for equal settings."""
    return json.dumps(settings, sort_keys=True)


def _one_spelling(value: Any) -> Any:
    """Returns 16 for 16.0: a config may hold either for the same real number."""
    if isinstance(value, list):
        return [_one_spelling(item) for item in value]
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if is_whole and abs(value) < _LARGE else value


def seed_of(config: Mapping[str, Any]) -> Any:
    """Returns the seed of a run; None if it has none.

    Args:
      config: the config from `RunDirectory.config`.
    """
    settings = flat(config["identity"])
    return next((settings[name] for name in _SEEDS if name in settings), None)


def _evaluations(run_dir: Path, figure: str | None, score: Score | None) -> Series:
    tables = [read_metrics(run_dir, group) for group in EVALUATION_GROUPS]
    table = next((table for table in tables if table), {})
    names = figures(table)
    if not names:
        raise UsageError(
            f"expected evaluations in {run_dir}, got none yet; the run writes the first one to "
            f"{run_dir / 'metrics'}"
        )
    name = default_figure(names, score) if figure is None else figure
    if name not in names:
        raise UsageError(f"--figure: expected one of {', '.join(names)}, got {name!r}")
    found = series(table, name, score)
    if not found.steps.size:
        raise UsageError(f"expected evaluations in {run_dir}, got none yet with {name}")
    return found


def figures(table: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the names of the columns of a table of metrics that are figures, not clocks."""
    return [name for name in list(table)[1:] if name != WALL_TIME]


def default_figure(names: Sequence[str], score: Score | None) -> str:
    """Returns the figure that measures how good a run is; the first one if that is unknown.

    Args:
      names: names of all figures.
      score: that of the run; None if it has none.
    """
    return score.figure if score is not None and score.figure in names else names[0]


def series(table: Mapping[str, np.ndarray], figure: str, score: Score | None = None) -> Series:
    """Returns one figure of a table of metrics.

    Args:
      table: the table from `read_metrics`, not empty.
      figure: one of `figures(table)`.
      score: that of the run; None if it has none.

    Returns:
      Its finite values, perhaps none.
    """
    x_label = next(iter(table))
    steps, values = np.asarray(table[x_label], np.float64), table[figure]
    known = np.isfinite(values)  # A row may hold only other figures.
    steps, values = steps[known], values[known]
    rows = rows_that_count(steps)
    labels = x_label.replace("_", " "), figure.replace("_", " ")
    is_lowest_best = None
    if score is not None and score.figure == figure:
        is_lowest_best = not score.is_highest_best
    return Series(steps[rows], values[rows], *labels, is_lowest_best)


def short_labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a label for each config: a few words that say how it differs from the others.

    Configs that differ in what is trained, or in the task, are labelled by these, because their
    other settings are not comparable. Configs that share both are labelled by the first settings
    that differ: two, or as many as distinguish them. The other differing settings are counted.

    Args:
      settings: the settings of each config, by name.

    Returns:
      The labels; "" if nothing differs.
    """
    names = differing(settings)
    heads = [name for name in _HEADS if name in names]
    if not heads:
        count = _MOST_NAMED_SETTINGS
        labels = _labels_by(settings, names, count)
        while len({*labels}) < len(labels) and count < len(names):  # Until the labels differ.
            count += 1
            labels = _labels_by(settings, names, count)
        return labels
    kinds = [", ".join(str(one.get(name)) for name in heads) for one in settings]
    found = list(kinds)
    for kind in set(kinds):
        places = [place for place, other in enumerate(kinds) if other == kind]
        within = short_labels([settings[place] for place in places])
        for place, words in zip(places, within, strict=True):
            found[place] = ", ".join(filter(None, (kind, words)))
    return found


def _labels_by(
    settings: Sequence[Mapping[str, Any]], names: Sequence[str], count: int
) -> list[str]:
    """Returns labels with the first `count` of the settings `names`."""
    more = [f"{len(names) - count} more"] if len(names) > count else []
    last = [name.rpartition(".")[2] for name in names]
    words = {
        name: (short if last.count(short) == 1 else name).replace("_", " ")
        for name, short in zip(names, last, strict=True)
    }
    return [
        ", ".join([*(_setting(words[name], one.get(name)) for name in names[:count]), *more])
        for one in settings
    ]


def _setting(words: str, value: object) -> str:
    return f"no {words}" if value is None else f"{words} {str(value).lower()}"


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the settings that are not equal in all of `settings`, sorted."""
    names = sorted({name for one in settings for name in one})
    return [name for name in names if len({repr(one.get(name)) for one in settings}) > 1]


def _title(settings: Sequence[Mapping[str, Any]]) -> str:
    words = []
    for name in _HEADS:
        values = {str(one[name]) for one in settings if name in one}
        words += sorted(values) if len(values) == 1 else []
    return " on ".join(words) or "Evaluations"
