"""The contents of a report, read from the directories of runs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.runs import evaluations, events
from rl_replicator.runs.evaluations import (
    EVALUATION_GROUPS,
    ComparedConfig,
    EvaluatedRun,
    Score,
    Series,
)
from rl_replicator.runs.metrics import WALL_TIME, read_metrics
from rl_replicator.runs.run_directory import RunDirectory, options_used

Table = Mapping[str, np.ndarray]
# Tables of a run that may stand in for its evaluations before there is one.
_TRAINING_GROUPS = ("actor", "train")
# Tables of figures that show the progress of training.
_DETAIL_GROUPS = ("learner", "train")
# Other tables may be the user's.
_GROUPS = tuple(dict.fromkeys((*EVALUATION_GROUPS, *_TRAINING_GROUPS, *_DETAIL_GROUPS)))


@dataclasses.dataclass(frozen=True)
class ReportedRun:
    """A run with its settings and metrics.

    Attributes:
      path: its directory.
      trainable: name of what it trains.
      task: name of the environment; "" for a learner.
      seed: the seed of the run; None if it has none.
      settings: the settings that distinguish it from others, except its seed.
      options: the options of the run, with the values that it has chosen for "auto".
      score: the figure that measures its quality; None if it has none.
      tables: group of metrics -> columns.
      written: when its metrics were written last, in seconds since the epoch.
    """

    path: Path
    trainable: str
    task: str
    seed: int | None
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    score: Score | None
    tables: Mapping[str, Table]
    written: float

    @property
    def name(self) -> str:
        """The name of its directory, which may be given as "."."""
        return RunDirectory(self.path).name

    @property
    def steps(self) -> int:
        """The newest step in any of its tables."""
        return max(int(next(iter(table.values())).max()) for table in self.tables.values())

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run; None if unknown."""
        steps = self.options.get("steps")
        if isinstance(steps, int) and steps > 0:
            return steps
        return None if self.score is None else self.score.end  # Its length is given in epochs.

    @property
    def seconds(self) -> float:
        """Duration of the run so far, without interruptions."""
        return max(float(np.nanmax(table[WALL_TIME])) for table in self.tables.values())

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / max(self.seconds, 1e-9)

    @property
    def is_complete(self) -> bool:
        """Whether it has taken all its steps, and evaluated what it has learned if it can."""
        table = self._first(EVALUATION_GROUPS)
        total = self.total_steps
        if total is None or (table is None and self.score is None):
            return events.is_finished(events.read(self.path))
        return table is not None and next(iter(table.values()))[-1] >= total

    @property
    def is_evaluated(self) -> bool:
        """Whether it has an evaluation."""
        return self._first(EVALUATION_GROUPS) is not None

    def evaluated(self, figure: str | None) -> EvaluatedRun:
        """Returns a figure of its evaluations, or of its training if there is none yet.

        Args:
          figure: its name; None for the score of the run, or its first figure. Training has that.

        Raises:
          UsageError: if the run lacks it.
        """
        if self.is_evaluated:
            found = evaluations.series(self._first(EVALUATION_GROUPS) or {}, figure, self.score)
        else:
            found = evaluations.series(self._first(_TRAINING_GROUPS) or {}, None, self.score)
            found = dataclasses.replace(found, y_label=f"{found.y_label} (training)")
        return EvaluatedRun(self.settings, self.seed, found)

    def details(self) -> dict[str, Series]:
        """Returns the figures of training by name, those that never change left out."""
        table = self._first(_DETAIL_GROUPS) or {}
        found = {}
        for name in evaluations.figures(table):
            if np.isfinite(table[name]).any():
                found[name] = evaluations.series(table, name, None)
        return {
            name: one for name, one in found.items() if len(one.steps) > 1 and np.ptp(one.values)
        }

    def _first(self, groups: Iterable[str]) -> Table | None:
        return next((self.tables[group] for group in groups if group in self.tables), None)


@dataclasses.dataclass(frozen=True)
class Reading:
    """All that a report shows.

    Attributes:
      runs: the runs.
      left_out: directories without a readable run, or of runs without a curve -> the reason.
      configs: the configs whose figure is drawn. Once a run is evaluated, those that are not yet
        have no curve.
      places: for each run, the index of its config in `configs`; None if it has none.
      read_at: seconds since the epoch.
    """

    runs: Sequence[ReportedRun]
    left_out: Mapping[Path, str]
    configs: Sequence[ComparedConfig]
    places: Sequence[int | None]
    read_at: float

    @property
    def tasks(self) -> list[str]:
        """Names of the environments of the curves; the only one of a learner is ""."""
        return evaluations.tasks_of(self.configs)

    @property
    def labels(self) -> tuple[str, str]:
        """What the steps of the curves are, and what the figure is."""
        curve = next(iter(self.configs[0].curves.values()))
        return curve.x_label, curve.y_label

    @property
    def is_lowest_best(self) -> bool | None:
        """Whether lower is better for that figure; None if unknown."""
        return next(iter(self.configs[0].curves.values())).is_lowest_best

    @property
    def has_bands(self) -> bool:
        """Whether a curve has several seeds."""
        return any(curve.seeds > 1 for one in self.configs for curve in one.curves.values())

    @property
    def evaluated_agents(self) -> list[ReportedRun]:
        """The runs of agents that have an evaluation."""
        return [run for run in self.runs if "evaluator" in run.tables]

    def runs_of(self, index: int) -> list[ReportedRun]:
        """Returns the runs of a config.

        Args:
          index: the index in `configs`.
        """
        return [run for run, own in zip(self.runs, self.places, strict=True) if own == index]


def read(paths: Sequence[Path], figure: str | None = None) -> Reading:
    """Reads runs, even while they train.

    Args:
      paths: directories of runs, or of suites, which stand for all their runs.
      figure: the figure of the evaluations to draw; None for the scores of the runs.
    """

    def drawable(path: Path) -> tuple[ReportedRun, EvaluatedRun]:
        run = _read(path)
        return run, run.evaluated(figure)

    found, left_out = evaluations.readable(paths, drawable)
    has_evaluation = any(run.is_evaluated for run, _ in found)
    drawn = [pair for pair in found if pair[0].is_evaluated or not has_evaluation]
    labels = [(one.series.y_label, one.series.x_label) for _, one in drawn]
    for (run, _), own in zip(drawn, labels, strict=True):
        if own != labels[0]:
            left_out[run.path] = (
                f"{' over '.join(own)} cannot be drawn beside {' over '.join(labels[0])}; "
                "report it on its own"
            )
    found = [pair for pair in found if pair[0].path not in left_out]
    drawn = [pair for pair in drawn if pair[0].path not in left_out]
    curves = evaluations.merged([one for _, one in drawn])
    apart = [one for curve in curves for one in curve.left_out]
    left_out |= {run.path: one.why_apart for run, one in drawn if one in apart}
    configs = evaluations.configs(curves)
    own_places = {evaluations.key_of(one.identity): place for place, one in enumerate(configs)}
    keys = [evaluations.key_of(evaluations.without_task(run.settings)) for run, _ in found]
    places = [own_places.get(key) for key in keys]
    return Reading([run for run, _ in found], left_out, configs, places, time.time())


def _read(path: Path) -> ReportedRun:
    config = RunDirectory(path).config()
    files = [path / "metrics" / f"{group}.csv" for group in _GROUPS]
    files = [file for file in files if file.exists()]
    tables = {file.stem: read_metrics(path, file.stem) for file in files}
    tables = {group: table for group, table in tables.items() if table and len(table[WALL_TIME])}
    if not tables:
        raise UsageError("it has no metrics yet")
    settings = evaluations.settings_of(config)
    return ReportedRun(
        path=path,
        trainable=str(config.get("trainable")),
        task=str(settings.get("env", "")),
        seed=evaluations.seed_of(config),
        settings=settings,
        options=options_used(config),
        score=Score.of(config),
        tables=tables,
        written=max(file.stat().st_mtime for file in files),
    )
