"""Published returns that a suite is compared with."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.runs import statistics

# In a checkout of the repository; an installed package has none.
DEFAULT = Path(__file__).parents[2] / "docs" / "results" / "anchors.csv"
_COLUMNS = {
    *("task", "observations", "algorithm", "updates_per_step"),
    *("environment_steps", "return_mean", "source"),
}


@dataclasses.dataclass(frozen=True)
class Anchors:
    """Mean returns of published algorithms at one number of environment steps.

    Attributes:
      returns: algorithm -> task -> mean return over seeds. The updates per environment step are
        part of an algorithm's name, such as "BRO (10)", if its publication tells them.
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
          UsageError: if there is no such file, or it has other columns.
        """
        try:
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
        except OSError as error:
            raise UsageError(f"--anchors: cannot read {path}: {error.strerror}") from None
        if not rows or set(rows[0]) != _COLUMNS:
            raise UsageError(
                f"--anchors: expected rows with the columns {', '.join(sorted(_COLUMNS))} in {path}"
            )
        returns: dict[str, dict[str, float]] = {}
        for row in rows:
            if row["observations"] == observations and int(row["environment_steps"]) == steps:
                updates = row["updates_per_step"]
                name = f"{row['algorithm']} ({updates})" if updates else row["algorithm"]
                returns.setdefault(name, {})[row["task"]] = float(row["return_mean"])
        return cls(returns)

    def mean(self, algorithm: str, tasks: Collection[str]) -> float | None:
        """Returns an algorithm's mean over tasks; None unless it has all of them, and one at least.

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
        return measure([np.array([known[task]]) for task in tasks])
