"""The results of a suite: one row for each task, seed and evaluation, and measures over them."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.runs import statistics
from rl_replicator.runs.metrics import WALL_TIME, read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import rows_that_count

# Last evaluations of runs that were asked for the same number of steps may differ by one action.
_MARK_TOLERANCE = 0.02


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


_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}


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
    names = [field.name for field in dataclasses.fields(ResultRow)]
    write_table(path, names, ([getattr(row, name) for name in names] for row in rows))


def read(path: Path) -> list[ResultRow]:
    """Reads what `write` wrote.

    Raises:
      UsageError: if the file has other columns.
    """
    kinds = {field.name: _TYPES[str(field.type)] for field in dataclasses.fields(ResultRow)}
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if set(reader.fieldnames or ()) != set(kinds):
            raise UsageError(
                f"expected the columns {', '.join(kinds)} in {path}, got "
                f"{', '.join(reader.fieldnames or ()) or 'none'}"
            )
        return [
            ResultRow(**{name: kinds[name](row[name] or "nan") for name in kinds}) for row in reader
        ]


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a CSV file atomically.

    Args:
      path: the path of the file.
      columns: their names.
      rows: cells; a NaN becomes an empty cell, other floats get three decimals.
    """
    new = path.with_suffix(".csv.new")
    with new.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(value) for value in row] for row in rows)
    os.replace(new, path)


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


MEASURES: Mapping[str, Callable[..., np.ndarray]] = {
    "mean": statistics.mean,
    "interquartile mean": statistics.interquartile_mean,
}


def summarize(marked: Mapping[str, Sequence[ResultRow]]) -> dict[str, statistics.Interval]:
    """Computes the measures over all tasks and seeds, with 95 % bootstrap intervals.

    Args:
      marked: rows from `at_end` or `at_mark`; not empty.

    Returns:
      For each of `MEASURES` its value and interval.
    """
    scores = [np.array([row.return_mean for row in rows]) for rows in marked.values()]
    return {name: statistics.bootstrap(measure, scores) for name, measure in MEASURES.items()}


def write_summary(path: Path, rows: Sequence[ResultRow], steps: int) -> None:
    """Writes the measures of the complete runs at their number of steps as CSV, atomically."""
    marked = at_end(rows, steps)
    intervals = summarize(marked) if marked else {}
    seeds = [len(found) for found in marked.values()]
    write_table(
        path,
        ("environment_steps", "measure", "value", "low", "high", "tasks", "fewest_seeds", "runs"),
        (
            (steps, name, one.value, one.low, one.high, len(marked), min(seeds), sum(seeds))
            for name, one in intervals.items()
        ),
    )
