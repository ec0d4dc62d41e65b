"""The evaluations of runs: the figure that counts, curves over seeds, and the configs of runs."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.runs import run_directory
from rl_replicator.runs.metrics import WALL_TIME, read_metrics
from rl_replicator.runs.plain_data import flat, to_plain
from rl_replicator.runs.run_directory import RunDirectory

_Run = TypeVar("_Run")
_LOG = logging.getLogger("rl_replicator")
# Groups of metrics that hold evaluations; a run has one of them.
EVALUATION_GROUPS = ("evaluation", "evaluator")
# Options that may make a difference. All but the first are not in a run's identity, because a run
# may be continued with other values.
_OPTIONS = ("action_repeat", "replicas", "actors", "envs_per_actor", "launch", "env_engine")
_SEEDS = ("seed", "config.seed")
_MOST_NAMED_SETTINGS = 2


@dataclasses.dataclass(frozen=True)
class Score:
    """The figure of a run's evaluations that measures how good the run is.

    Attributes:
      group: name of the table of metrics that has it.
      figure: name of its column.
      is_highest_best: whether a higher figure is better.
      every: steps after which an evaluation is due, if it may come some steps late; None if equal
        runs are evaluated at equal steps.
      end: steps of the whole run, as evaluations count them; None if unknown.
      counted: what these steps are; None: what the first column of the table is named after.
    """

    group: str
    figure: str
    is_highest_best: bool = True
    every: int | None = None
    end: int | None = None
    counted: str | None = None

    @classmethod
    def of(cls, config: dict[str, Any]) -> Score | None:
        """Returns the score that a run's config.json names; None if it names none."""
        stored = config.get("score")
        return cls(**stored) if stored else None

    def plain(self) -> dict[str, Any]:
        """Returns what `of` reads, as plain data."""
        return to_plain(self)

    def read(self, run_dir: Path) -> tuple[np.ndarray, np.ndarray]:
        """Reads the evaluations of a run, even while it trains.

        Returns:
          Steps [evaluations] int64, each once and in order, and figures [evaluations] float64.
        """
        table = read_metrics(run_dir, self.group)
        if self.figure not in table:
            return np.zeros(0, np.int64), np.zeros(0)
        steps, figures = next(iter(table.values())), table[self.figure]
        rows = rows_that_count(steps)
        return steps[rows], figures[rows]


def rows_that_count(steps: np.ndarray) -> list[int]:
    """Returns the indices of the evaluations of a run that count, in the order of their steps.

    A run that was killed and resumed may have evaluated a step twice: the later one counts.

    Args:
      steps: [evaluations], as a table of metrics has them.
    """
    last = {int(step): index for index, step in enumerate(steps)}
    return [index for _, index in sorted(last.items())]


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
        return (
            f"seed {self.seed} has evaluations at {first:,.0f} to {last:,.0f} "
            f"{self.series.x_label}, and none at steps of its other seeds"
        )


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
      is_measured: [T] whether all runs were evaluated at this step.
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
    is_measured: np.ndarray
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

    @property
    def name(self) -> str:
        """What distinguishes it: what it trains, or the first settings that differ."""
        if "trainable" in self.settings or not self.settings:
            return str(self.identity.get("trainable", ""))
        words = [
            f"{name.rpartition('.')[2].replace('_', ' ')} {str(value).lower()}"
            for name, value in self.settings.items()
        ]
        more = len(words) - _MOST_NAMED_SETTINGS
        return ", ".join([*words[:_MOST_NAMED_SETTINGS], *([f"{more} more"] if more > 0 else [])])


def expanded(paths: Sequence[Path]) -> list[Path]:
    """Returns directories of runs, each once; a folder of runs is replaced by its runs.

    Args:
      paths: directories of runs, or of sweeps, suites and other folders, which stand for all their
        runs.
    """
    found: dict[str, Path] = {}
    for path in paths:
        for one in run_directory.runs_within(path) or [path]:
            # `Path.resolve` fails for a link that leads to itself.
            found.setdefault(os.path.realpath(one), one)
    return list(found.values())


def readable(
    paths: Sequence[Path], read: Callable[[Path], _Run]
) -> tuple[list[_Run], dict[Path, str]]:
    """Reads runs, and leaves out those that cannot be read.

    Args:
      paths: see `expanded`.
      read: reads the run in a directory.

    Returns:
      The results of `read`; and the directories for which it raised, with the reasons, one line.
    """
    found, left_out = [], {}
    for path in expanded(paths):
        try:
            found.append(read(path))
        except (UsageError, OSError, ValueError, KeyError, TypeError) as error:
            is_told = isinstance(error, UsageError)
            text = str(error) if is_told else f"expected whole files, got {error!r}"
            left_out[path] = " ".join(text.split())
    return found, left_out


def none_left(left_out: Mapping[Path, str]) -> UsageError:
    """Returns the error of a command that has no usable run; see `readable`."""
    # Most reasons name the path themselves.
    told = [why if str(path) in why else f"{path}: {why}" for path, why in left_out.items()]
    return UsageError("; ".join(told))


def evaluated(paths: Sequence[Path], figure: str | None) -> list[EvaluatedRun]:
    """Reads evaluations, and prints on stderr which runs are left out, and why.

    Args:
      paths: see `expanded`.
      figure: see `read`.

    Returns:
      At least one run.

    Raises:
      UsageError: if no run can be read.
    """
    runs, left_out = readable(paths, functools.partial(read, figure=figure))
    if not runs:
        raise none_left(left_out)
    for path, reason in left_out.items():
        print(f"left out {path}: {reason}", file=sys.stderr)
    return runs


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
    tables = [read_metrics(run_dir, group) for group in EVALUATION_GROUPS]
    found = series(next((table for table in tables if table), {}), figure, Score.of(config))
    return EvaluatedRun(settings_of(config), seed_of(config), found)


def figures(table: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the names of the columns of a table of metrics that are figures, not clocks."""
    return [name for name in list(table)[1:] if name != WALL_TIME]


def series(table: Mapping[str, np.ndarray], figure: str | None, score: Score | None) -> Series:
    """Returns one figure of a table of metrics.

    Args:
      table: the table from `read_metrics`.
      figure: its name; None for the score, or the first one if there is none.
      score: that of the run; None if it has none.

    Raises:
      UsageError: if the table lacks the figure, or has no finite value of it yet.
    """
    names = figures(table)
    if not names:
        raise UsageError("expected evaluations, got none yet; the run writes them to its metrics/")
    best = score.figure if score is not None and score.figure in names else names[0]
    figure = best if figure is None else figure
    if figure not in names:
        raise UsageError(f"--figure: expected one of {', '.join(names)}, got {figure!r}")
    x_label = next(iter(table))
    steps, values = np.asarray(table[x_label], np.float64), table[figure]
    known = np.isfinite(values)  # A row may hold only other figures.
    if not known.any():
        raise UsageError(f"expected evaluations with {figure}, got no finite value yet")
    rows = np.flatnonzero(known)[rows_that_count(steps[known])]
    is_lowest_best = None
    if score is not None and score.figure == figure:
        is_lowest_best = not score.is_highest_best
    counted = score.counted if score is not None and score.counted else x_label.replace("_", " ")
    labels = counted, figure.replace("_", " ")
    return Series(steps[rows], values[rows], *labels, is_lowest_best)


# What the identity of an agent's run says about the environment follows from its task.
_OF_TASK = "environment"


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that distinguish a run from others, except its seed, by dotted name.

    They are the requested settings: the values that a run has derived from its task would make the
    runs of each task a different config.

    Args:
      config: the config from `RunDirectory.config`.
    """
    options = config.get("options", {})
    identity = {name: one for name, one in config["identity"].items() if name != _OF_TASK}
    asked = {"agent": options.get("agent"), "pixels": options.get("frame")}
    settings = flat({**identity, **{name: one for name, one in asked.items() if one}})
    settings.update({name: options[name] for name in _OPTIONS if name in options})
    return {name: value for name, value in settings.items() if name not in _SEEDS}


def seed_of(config: Mapping[str, Any]) -> Any:
    """Returns the seed of a run; None if it has none.

    Args:
      config: the config from `RunDirectory.config`.
    """
    settings = flat(config["identity"])
    return next((settings[name] for name in _SEEDS if name in settings), None)


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
        _LOG.warning("left out: %s", one.why_apart)
    return found


def merged(runs: Sequence[EvaluatedRun]) -> list[Curve]:
    """Groups the series of runs that have equal settings.

    Args:
      runs: runs with the same figure and kind of steps.

    Returns:
      One curve for each set of settings, in the order of the runs. It includes the largest number
      of runs that have a step in common.
    """
    groups: dict[str, list[EvaluatedRun]] = {}
    for one in runs:
        groups.setdefault(key_of(one.settings), []).append(one)
    told = {one.series.is_lowest_best for one in runs} - {None}
    is_lowest_best = told.pop() if len(told) == 1 else None
    return [_curve(everyone, is_lowest_best) for everyone in groups.values()]


def key_of(settings: Mapping[str, Any]) -> str:
    """Returns a key of settings, which is equal for equal settings."""
    return json.dumps(settings, sort_keys=True)


def _curve(everyone: Sequence[EvaluatedRun], is_lowest_best: bool | None) -> Curve:
    members = _overlapping(everyone)
    runs = [one.series for one in members]
    steps = np.unique(np.concatenate([run.steps for run in runs]))
    first, end = max(run.steps[0] for run in runs), min(run.steps[-1] for run in runs)
    steps = steps[(first <= steps) & (steps <= end)]
    seeds: dict[str, list[np.ndarray]] = {}
    for index, one in enumerate(members):
        seed = f"run {index}" if one.seed is None else repr(one.seed)
        values = np.interp(steps, one.series.steps, one.series.values)
        seeds.setdefault(seed, []).append(values)
    return Curve(
        everyone[0].settings,
        len(runs),
        len(seeds),
        steps,
        np.stack([np.mean(own, axis=0) for own in seeds.values()]),
        np.all([np.isin(steps, run.steps) for run in runs], axis=0),
        runs[0].x_label,
        runs[0].y_label,
        is_lowest_best,
        [one for one in everyone if one not in members],
    )


def _overlapping(runs: Sequence[EvaluatedRun]) -> list[EvaluatedRun]:
    """Returns the largest group of runs with a step in common; of several, that of the latest."""
    ends = sorted((one.series.steps[-1] for one in runs), reverse=True)
    return max(([one for one in runs if reach(one.series.steps, end)] for end in ends), key=len)


def reach(steps: np.ndarray, step: float) -> bool:
    """Returns whether a step lies within the steps of a curve, which has no figure elsewhere."""
    return bool(steps[0] <= step <= steps[-1])


def without_task(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a run without the one that names its task."""
    return {name: value for name, value in settings.items() if name != "env"}


def configs(found: Sequence[Curve]) -> list[ComparedConfig]:
    """Groups curves by their settings, except the task.

    Args:
      found: curves of any runs.
    """
    groups: dict[str, tuple[dict[str, Any], dict[str, Curve]]] = {}
    for curve in found:
        settings = without_task(curve.settings)
        _, own = groups.setdefault(key_of(settings), (settings, {}))
        own[str(curve.settings.get("env", ""))] = curve
    names = differing([settings for settings, _ in groups.values()])
    return [
        ComparedConfig(
            chr(ord("A") + index) if index < 26 else f"C{index + 1}",
            {name: settings.get(name) for name in names},
            settings,
            own,
        )
        for index, (settings, own) in enumerate(groups.values())
    ]


def tasks_of(compared: Sequence[ComparedConfig]) -> list[str]:
    """Returns the tasks of configs, each once; the only one of a learner is ""."""
    return list(dict.fromkeys(task for config in compared for task in config.curves))


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the settings that are not equal in all of `settings`, sorted."""
    names = sorted({name for one in settings for name in one})
    return [name for name in names if len({repr(one.get(name)) for one in settings}) > 1]
