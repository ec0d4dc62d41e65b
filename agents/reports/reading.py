"""The contents of a report, read from the directories of runs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.runs import comparison, events, plots, selection
from rl_replicator.runs.comparison import ComparedConfig
from rl_replicator.runs.metrics import WALL_TIME, read_metrics
from rl_replicator.runs.plots import EvaluatedRun, Series
from rl_replicator.runs.run_directory import RunDirectory, options_used
from rl_replicator.runs.score import Score
from rl_replicator.runs.selection import LeftOut

Table = Mapping[str, np.ndarray]
# Tables of a run that may stand in for its evaluations before there is one.
_TRAINING_GROUPS = ("actor", "train")
# Tables of figures that show the progress of training.
_DETAIL_GROUPS = ("learner", "train")
# Other tables may be the user's.
_GROUPS = tuple(dict.fromkeys((*plots.EVALUATION_GROUPS, *_TRAINING_GROUPS, *_DETAIL_GROUPS)))


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
        table = self._first(plots.EVALUATION_GROUPS)
        total = self.total_steps
        if total is None or (table is None and self.score is None):
            return events.is_finished(events.read(self.path))
        return table is not None and next(iter(table.values()))[-1] >= total

    @property
    def is_evaluated(self) -> bool:
        """Whether it has an evaluation."""
        return self._first(plots.EVALUATION_GROUPS) is not None

    def series(self, figure: str | None) -> Series:
        """Returns a figure of the evaluations, or of training if there is none yet.

        Args:
          figure: its name; None for the score of the run, or the first one of training.

        Raises:
          UsageError: if the run lacks it.
        """
        table = self._first((*plots.EVALUATION_GROUPS, *_TRAINING_GROUPS))
        names = plots.figures(table or {})
        if table is None or not names:
            raise UsageError("it has no figures yet")
        if figure is not None and figure not in names and self.is_evaluated:
            raise UsageError(f"expected one of the figures {', '.join(names)}, got {figure!r}")
        default = plots.default_figure(names, self.score if self.is_evaluated else None)
        found = plots.series(table, figure if figure in names else default, self.score)
        if not found.steps.size:
            raise UsageError(f"it has no finite value of {found.y_label} yet")
        if not self.is_evaluated:
            found = dataclasses.replace(found, y_label=f"{found.y_label} (training)")
        return found

    def details(self) -> dict[str, Series]:
        """Returns the figures of training by name, those that never change left out."""
        table = self._first(_DETAIL_GROUPS) or {}
        found = {name: plots.series(table, name) for name in plots.figures(table)}
        return {
            name: one for name, one in found.items() if len(one.steps) > 1 and np.ptp(one.values)
        }

    def _first(self, groups: Iterable[str]) -> Table | None:
        return next((self.tables[group] for group in groups if group in self.tables), None)


@dataclasses.dataclass(frozen=True)
class Family:
    """Runs whose figures can be drawn into one plot.

    Attributes:
      x_label: the name of their steps.
      y_label: the name of their figure.
      is_evaluated: whether it is a figure of evaluations, not of training.
      configs: the configs among them.
    """

    x_label: str
    y_label: str
    is_evaluated: bool
    configs: Sequence[ComparedConfig]

    @property
    def tasks(self) -> list[str]:
        """Names of the environments of its curves; the only one of a learner is ""."""
        return list(dict.fromkeys(task for config in self.configs for task in config.curves))


@dataclasses.dataclass(frozen=True)
class Reading:
    """All that a report shows.

    Attributes:
      runs: the runs.
      left_out: directories without a readable run, and of runs without a curve.
      families: the configs of the runs; labels are unique over all families.
      places: for each run, the index of its config in `configs`.
      read_at: seconds since the epoch.
    """

    runs: Sequence[ReportedRun]
    left_out: Sequence[LeftOut]
    families: Sequence[Family]
    places: Sequence[int]
    read_at: float

    @property
    def configs(self) -> list[ComparedConfig]:
        """The configs of all families."""
        return [config for family in self.families for config in family.configs]

    @property
    def tasks(self) -> list[str]:
        """Names of all environments."""
        return list(dict.fromkeys(run.task for run in self.runs if run.task))

    @property
    def has_bands(self) -> bool:
        """Whether a curve has several seeds."""
        return any(curve.seeds > 1 for one in self.configs for curve in one.curves.values())

    @property
    def evaluated_agents(self) -> list[ReportedRun]:
        """The runs of agents that have an evaluation."""
        return [run for run in self.runs if "evaluator" in run.tables]

    def numbered_families(self) -> Iterator[tuple[int, Family]]:
        """Yields each family and the index of its first config in `configs`."""
        first = 0
        for family in self.families:
            yield first, family
            first += len(family.configs)

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

    def drawable(path: Path) -> tuple[ReportedRun, Series]:
        run = _read(path)
        return run, run.series(figure)

    found, left_out = selection.readable(paths, drawable)
    families, places, apart = _families(found)
    left_out = [*left_out, *apart]
    return Reading([run for run, _ in found], left_out, families, places, time.time())


def _read(path: Path) -> ReportedRun:
    config = RunDirectory(path).config()
    files = [path / "metrics" / f"{group}.csv" for group in _GROUPS]
    files = [file for file in files if file.exists()]
    tables = {file.stem: read_metrics(path, file.stem) for file in files}
    tables = {group: table for group, table in tables.items() if table and len(table[WALL_TIME])}
    if not tables:
        raise UsageError("it has no metrics yet")
    settings = plots.settings_of(config)
    return ReportedRun(
        path=path,
        trainable=str(config.get("trainable")),
        task=str(settings.get("env", "")),
        seed=plots.seed_of(config),
        settings=settings,
        options=options_used(config),
        score=Score.of(config),
        tables=tables,
        written=max(file.stat().st_mtime for file in files),
    )


def _families(
    runs: Sequence[tuple[ReportedRun, Series]],
) -> tuple[list[Family], list[int], list[LeftOut]]:
    """Returns the families, for each run the index of its config, and runs left out of curves.

    A run without an evaluation has no curve if other runs of its config are evaluated.
    """
    keys = [plots.key_of(comparison.without_task(run.settings)) for run, _ in runs]
    evaluated = {key for key, (run, _) in zip(keys, runs, strict=True) if run.is_evaluated}
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for index, (run, series) in enumerate(runs):
        if run.is_evaluated or keys[index] not in evaluated:
            labels = (series.x_label, series.y_label, run.is_evaluated)
            groups.setdefault(labels, []).append(index)
    families: list[Family] = []
    places: dict[int, int] = {}
    first_places: dict[str, int] = {}
    left_out = []
    for labels, members in groups.items():
        first = sum(len(family.configs) for family in families)
        drawn = [EvaluatedRun(runs[i][0].settings, runs[i][0].seed, runs[i][1]) for i in members]
        curves = plots.merged(drawn)
        configs = comparison.grouped(curves, first)
        own = {plots.key_of(config.identity): place for place, config in enumerate(configs, first)}
        first_places = own | first_places
        for i, one in zip(members, drawn, strict=True):
            places[i] = own[keys[i]]
            if any(one in curve.left_out for curve in curves):
                left_out.append(LeftOut(runs[i][0].path, one.why_apart))
        families.append(Family(*labels, configs))
    in_order = [places.get(index, first_places[key]) for index, key in enumerate(keys)]
    return families, in_order, left_out
