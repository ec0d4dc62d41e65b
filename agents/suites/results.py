"""The results of a suite: one row for each task, seed and evaluation; measures; published ones."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.runs import atomic_file, statistics
from rl_replicator.runs.evaluations import rows_that_count
from rl_replicator.runs.metrics import WALL_TIME, read_metrics
from rl_replicator.runs.run_directory import RunDirectory

# Last evaluations of runs that were asked for the same number of steps may differ by one action.
_MARK_TOLERANCE = 0.02
# Published returns, in a checkout of the repository; an installed package has none.
ANCHORS = Path(__file__).parents[2] / "docs" / "results" / "anchors.csv"


@dataclasses.dataclass(frozen=True)
class ResultRow:
    """One evaluation of one run.

    Attributes:
      agent: name of the agent.
      preset: the preset of its hyper-parameters.
      observations: "state" or "pixels".
      task: name of the environment.
      seed: the seed of the run.
      environment_steps: steps of the run at the evaluation.
      learner_steps: learner steps of the evaluated weights.
      return_mean: mean return of the episodes.
      return_min: lowest return.
      return_median: median return; NaN if the run did not record it.
      return_max: highest return.
      failed_share: share of failed episodes (`agents.nodes.evaluator`); NaN likewise.
      episodes: number of episodes.
      clock_seconds: duration of the run up to the evaluation, without start-up.
    """

    agent: str
    preset: str
    observations: str
    task: str
    seed: int
    environment_steps: int
    learner_steps: int
    return_mean: float
    return_min: float
    return_median: float
    return_max: float
    failed_share: float
    episodes: int
    clock_seconds: float


def read_run(run_dir: Path) -> list[ResultRow]:
    """Reads the evaluations of a run, even while it trains.

    Args:
      run_dir: the run's directory.

    Returns:
      One row for each evaluation, in the order of environment steps.

    Raises:
      UsageError: if it is not the directory of a run.
    """
    config = RunDirectory(run_dir).config()
    table = read_metrics(run_dir, "evaluator")
    if not table:
        return []
    steps = table["environment_steps"]
    missing = np.full(len(steps), np.nan)
    return [
        ResultRow(
            agent=config["trainable"],
            preset=str(config["options"].get("preset") or "default"),
            observations="pixels" if "pixels" in config["identity"] else "state",
            task=config["identity"]["env"],
            seed=config["identity"]["seed"],
            environment_steps=int(steps[index]),
            learner_steps=int(table["learner_steps"][index]),
            return_mean=float(table["episode_return"][index]),
            return_min=float(table["episode_return_min"][index]),
            return_median=float(table.get("episode_return_median", missing)[index]),
            return_max=float(table["episode_return_max"][index]),
            failed_share=float(table.get("failed_share", missing)[index]),
            episodes=int(table["episodes"][index]),
            clock_seconds=float(table[WALL_TIME][index]),
        )
        for index in rows_that_count(steps)
    ]


def write(path: Path, rows: Iterable[ResultRow]) -> None:
    """Writes rows as CSV, atomically; an undefined number is an empty cell."""
    with atomic_file.replacing(path) as new, new.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in dataclasses.fields(ResultRow))
        writer.writerows(map(_cell, dataclasses.astuple(row)) for row in rows)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if math.isnan(value) else f"{value:.3f}".rstrip("0").rstrip(".")


def at_mark(rows: Iterable[ResultRow], steps: int) -> dict[str, list[ResultRow]]:
    """Returns the evaluation of each run at a number of environment steps.

    Args:
      rows: rows of any runs with the same settings.
      steps: environment steps.

    Returns:
      For each task, in the order of `rows`, one row for each seed: the nearest one, at most 2 %
      before `steps` or after: evaluations come some steps late.
    """
    found: dict[str, dict[int, ResultRow]] = {}

    def distance(row: ResultRow) -> tuple[int, int]:
        return abs(row.environment_steps - steps), row.environment_steps

    for row in rows:
        if abs(row.environment_steps - steps) <= _MARK_TOLERANCE * steps:
            nearest = found.setdefault(row.task, {}).get(row.seed, row)
            if distance(row) <= distance(nearest):
                found[row.task][row.seed] = row
    return {task: [seeds[seed] for seed in sorted(seeds)] for task, seeds in found.items()}


def at_end(rows: Iterable[ResultRow], steps: int) -> dict[str, list[ResultRow]]:
    """Returns the evaluation of each complete run at a number of environment steps.

    Args:
      rows: rows of any runs with the same settings.
      steps: environment steps of a complete run, which may have been trained further.

    Returns:
      What `at_mark` finds of the runs that were evaluated after `steps` steps or more: one that
      failed or was stopped shortly before does not count.
    """
    rows = list(rows)
    complete = {(row.task, row.seed) for row in rows if row.environment_steps >= steps}
    return at_mark((row for row in rows if (row.task, row.seed) in complete), steps)


@dataclasses.dataclass(frozen=True)
class Anchors:
    """Mean returns of published algorithms at one number of environment steps.

    Attributes:
      returns: algorithm -> task -> mean return over seeds. The updates per environment step are
        part of an algorithm's name, such as "BRO (10)", if its publication states them.
    """

    returns: Mapping[str, Mapping[str, float]]

    @classmethod
    def read(cls, path: Path, observations: str, steps: int) -> Anchors:
        """Reads the returns at exactly `steps` environment steps.

        Args:
          path: CSV file with the columns of `docs/results/anchors.csv`.
          observations: "state" or "pixels".
          steps: environment steps.

        Raises:
          UsageError: if there is no such file, or it has other columns or values.
        """
        returns: dict[str, dict[str, float]] = {}
        place = f"{path}"
        try:
            with path.open(newline="", encoding="utf-8") as file:
                for line, row in enumerate(csv.DictReader(file), 2):
                    place = f"{path}, line {line}"
                    updates, at = row["updates_per_step"], int(row["environment_steps"])
                    name = f"{row['algorithm']} ({updates})" if updates else row["algorithm"]
                    value = float(row["return_mean"])
                    if row["observations"] == observations and at == steps:
                        returns.setdefault(name, {})[row["task"]] = value
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            columns = "task, observations, algorithm, updates_per_step, environment_steps"
            raise UsageError(
                f"--anchors: expected the columns {columns} and return_mean, as in "
                f"docs/results/anchors.csv, got {place}: {error}"
            ) from None
        return cls(returns)

    def measured(self, measure: str, algorithm: str, tasks: Collection[str]) -> float | None:
        """Returns a measure over the means of tasks; None if one is missing, or there are none.

        Args:
          measure: one of `statistics.MEASURES`.
          algorithm: a key of `returns`.
          tasks: names of environments.
        """
        known = self.returns.get(algorithm, {})
        if not tasks or any(task not in known for task in tasks):
            return None
        return float(statistics.MEASURES[measure]([np.array([known[task]]) for task in tasks]))
