"""Published returns that a suite is compared with."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.runs import statistics

# In a checkout of the repository; an installed package has none.
DEFAULT = Path(__file__).parents[2] / "docs" / "results" / "anchors.csv"
_Number = TypeVar("_Number", int, float)
_COLUMNS = {
    *("task", "observations", "algorithm", "updates_per_step"),
    *("environment_steps", "return_mean", "source"),
}


@dataclasses.dataclass(frozen=True)
class Anchors:
    """Mean returns of published algorithms at one number of environment steps.

    Attributes:
      returns: algorithm -> task -> mean return over seeds. The updates per environment step are
        part of an algorithm's name, such as "BRO (10)", if its publication states them.
    """

    returns: dict[str, dict[str, float]]

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
        for row in _read(path):
            if row.observations == observations and row.environment_steps == steps:
                returns.setdefault(row.name, {})[row.task] = row.return_mean
        return cls(returns)

    def mean(self, algorithm: str, tasks: Collection[str]) -> float | None:
        """Returns an algorithm's mean over tasks; None if it lacks a task, or there are none.

        Args:
          algorithm: a key of `returns`.
          tasks: names of environments.
        """
        return self._measure(algorithm, list(tasks), statistics.mean)

    def interquartile_mean(self, algorithm: str, tasks: Collection[str]) -> float | None:
        """Returns an algorithm's interquartile mean over its means of tasks; None as for `mean`."""
        return self._measure(algorithm, list(tasks), statistics.interquartile_mean)

    def _measure(self, algorithm: str, tasks: Sequence[str], measure) -> float | None:
        known = self.returns.get(algorithm, {})
        if not tasks or any(task not in known for task in tasks):
            return None
        return float(measure([np.array([known[task]]) for task in tasks]))


@dataclasses.dataclass(frozen=True)
class _Row:
    """A published return; `name` is that of the algorithm, see `Anchors`."""

    name: str
    task: str
    observations: str
    environment_steps: int
    return_mean: float


def _read(path: Path) -> Iterator[_Row]:
    """Yields the rows of a file.

    Raises:
      UsageError: if it cannot be read, or has other columns or values.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise UsageError(f"--anchors: cannot read {path}: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"--anchors: expected a CSV file in UTF-8, got {path}: {error}") from None
    if not rows or set(reader.fieldnames or ()) != _COLUMNS:
        raise UsageError(
            f"--anchors: expected rows with the columns {', '.join(sorted(_COLUMNS))} in {path}"
        )
    for line, row in rows:
        try:
            yield _row(row)
        except ValueError as error:
            raise UsageError(f"--anchors: {path}, line {line}: {error}") from None


def _row(row: dict[str, str]) -> _Row:
    """Returns a row; raises ValueError if it has a bad value."""
    if set(row) != _COLUMNS or None in row.values():  # As from DictReader for other lengths.
        raise ValueError(f"expected {len(_COLUMNS)} values, got another number")
    updates, algorithm = row["updates_per_step"], row["algorithm"]
    return _Row(
        name=f"{algorithm} ({updates})" if updates else algorithm,
        task=row["task"],
        observations=row["observations"],
        environment_steps=_number(row, "environment_steps", int),
        return_mean=_number(row, "return_mean", float),
    )


def _number(row: dict[str, str], column: str, kind: Callable[[str], _Number]) -> _Number:
    try:
        number = kind(row[column])
    except ValueError:
        number = None
    if number is None or not math.isfinite(number):
        expected = "whole" if kind is int else "finite"
        raise ValueError(f"expected a {expected} number as {column}, got {row[column]!r}")
    return number
