"""A trial of a sweep: values of the searched options, and one run for each seed."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import Score
from rl_replicator.sweeps.lineage import Stage


class TrialState(enum.Enum):
    """The state of a trial."""

    RUNNING = "running"
    PAUSED = "paused"
    """Waits until all trials of its population have come as far."""
    STOPPED = "stopped"
    """Worse than others at the same evaluation, so it was not continued."""
    DONE = "done"
    FAILED = "failed"
    """One of its runs ended with an error."""


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The evaluations of a trial so far, which all of its runs have in common.

    Attributes:
      steps: the lowest step of any run at each evaluation, [evaluations] int64.
      scores: the figure of each run, [seeds, evaluations].
    """

    steps: np.ndarray
    scores: np.ndarray

    @property
    def count(self) -> int:
        """Number of evaluations."""
        return len(self.steps)

    @property
    def means(self) -> np.ndarray:
        """The mean over the seeds at each evaluation, [evaluations]."""
        return self.scores.mean(axis=0)


@dataclasses.dataclass
class SweepTrial:
    """A trial.

    Attributes:
      number: 0, 1, ...
      values: option -> value, as written on the command line.
      path: its directory, which holds the directories of its runs.
      seeds: seeds of its runs; a single None if what is trained has no option for the seed.
      state: its state.
      reason: why it failed, one line; "" if it did not, or if that was in an earlier process.
      lineage: stages of the training that has led to its weights, in a population; empty otherwise.
      total_steps: steps of a whole run, as evaluations count them; None if unknown, as before the
        first one has begun. Steps beyond them, for which a separate command has trained a run, do
        not count.
    """

    number: int
    values: Mapping[str, str]
    path: Path
    seeds: tuple[int | None, ...]
    state: TrialState = TrialState.RUNNING
    reason: str = ""
    lineage: tuple[Stage, ...] = ()
    total_steps: int | None = None

    @property
    def name(self) -> str:
        """Name of its directory."""
        return self.path.name

    def run_dir(self, seed: int | None) -> Path:
        """Returns the directory of the run with a seed."""
        return self.path / f"seed-{seed or 1}"

    def score(self) -> Score | None:
        """Returns the figure that measures its runs; None before the first one has begun.

        Raises:
          UsageError: if the runs have no evaluation.
        """
        run = RunDirectory(self.run_dir(self.seeds[0]))
        if not run.exists:
            return None
        score = Score.of(run.config())
        if score is None:
            raise UsageError(
                "expected runs with an evaluation, by which a sweep compares them, got runs "
                "without; return one from the learner's evaluation()"
            )
        return score

    def evaluated(self) -> Evaluated:
        """Reads the evaluations that all of its runs have reached.

        A run may lack an evaluation that others have: the first one, if its learner had not begun,
        or one that was due during another. So rows are matched by the steps at which they were due,
        and the row at the end of a run only with those at the ends of the others. Later rows do not
        change evaluations that were returned before. The last evaluation of a trial that is done
        consists of the last one of each run.
        """
        score = self.score()
        if score is None:
            return _joined([], [()] * len(self.seeds))
        tables = self._tables(score)
        marks = set.intersection(
            *(_marks(steps, score.every, self.total_steps) for steps, _ in tables)
        )
        rows = [tuple(np.searchsorted(steps, sorted(marks))) for steps, _ in tables]
        if self.state is TrialState.DONE and all(len(steps) > 0 for steps, _ in tables):
            rows = [(*own, len(steps) - 1) for own, (steps, _) in zip(rows, tables, strict=True)]
        return _joined(tables, rows)

    def has_evaluations(self) -> bool:
        """Returns whether each of its runs has been evaluated, after any number of steps."""
        score = self.score()
        return score is not None and all(len(steps) > 0 for steps, _ in self._tables(score))

    def has_all_steps(self) -> bool:
        """Returns whether each of its runs has been evaluated after all of its steps."""
        end = self.total_steps
        return end is not None and bool((self.evaluated().steps >= end).any())

    def is_beyond(self, seed: int | None) -> bool:
        """Returns whether a run was trained for longer, so that it refuses the sweep's steps."""
        run = RunDirectory(self.run_dir(seed))
        score = Score.of(run.config()) if run.exists else None
        if score is None or score.end is None or self.total_steps is None:
            return False
        steps, _ = score.read(run.path)
        return score.end > self.total_steps and bool((steps >= self.total_steps).any())

    def _tables(self, score: Score) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the steps and the figures of each run, up to `total_steps`."""
        tables = [score.read(self.run_dir(seed)) for seed in self.seeds]
        if self.total_steps is None:
            return tables
        within = [steps <= self.total_steps for steps, _ in tables]
        return [(steps[i], figures[i]) for (steps, figures), i in zip(tables, within, strict=True)]


def _marks(steps: np.ndarray, every: int | None, end: int | None) -> set[int]:
    """Returns the steps at which the evaluations of a run were due; `end` is its last step."""
    if every is None:
        return set(steps.tolist())
    return set(np.where(steps == end, steps, steps // every * every).tolist())


def _joined(
    tables: Sequence[tuple[np.ndarray, np.ndarray]], rows: Sequence[Sequence[int]]
) -> Evaluated:
    """Joins the evaluations of several runs.

    Args:
      tables: steps and figures of each run.
      rows: indices of the rows to join, equally many for each run; duplicates count once.
    """
    chosen = list(dict.fromkeys(zip(*rows, strict=True)))  # [evaluations][seeds]
    own = np.array(chosen, np.int64).reshape(-1, len(rows)).T  # [seeds, evaluations]
    if not own.size:
        return Evaluated(np.zeros(0, np.int64), np.zeros(own.shape))
    pairs = list(zip(tables, own, strict=True))
    return Evaluated(
        np.min([steps[index] for (steps, _), index in pairs], axis=0),
        np.stack([figures[index] for (_, figures), index in pairs]),
    )
