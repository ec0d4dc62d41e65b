"""The figure of a run's evaluations that measures how good the run is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.plain_data import to_plain


@dataclasses.dataclass(frozen=True)
class Score:
    """A figure of the evaluations.

    Attributes:
      group: name of the table of metrics that has it.
      figure: name of its column.
      is_highest_best: whether a higher figure is better.
      every: steps after which an evaluation is due, if it may come some steps late; None if equal
        runs are evaluated at equal steps.
      end: steps of the whole run, as evaluations count them; None if unknown.
    """

    group: str
    figure: str
    is_highest_best: bool = True
    every: int | None = None
    end: int | None = None

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

        Args:
          run_dir: directory of the run.

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
