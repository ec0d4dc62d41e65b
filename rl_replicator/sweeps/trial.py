"""A trial of a sweep: values of the searched options, and one run for each seed."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import Score
from rl_replicator.sweeps.lineage import Stage


class TrialState(enum.Enum):
    """What became of a trial."""

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
      steps: steps of the runs at each evaluation, [evaluations] int64.
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
      seeds: seeds of its runs; one None if what is trained has no option for the seed.
      state: what became of it.
      reason: why it failed, one line; "" if it did not, or if that was in an earlier process.
      lineage: stages of the training that has led to its weights, in a population; empty otherwise.
    """

    number: int
    values: Mapping[str, str]
    path: Path
    seeds: tuple[int | None, ...]
    state: TrialState = TrialState.RUNNING
    reason: str = ""
    lineage: tuple[Stage, ...] = ()

    @property
    def name(self) -> str:
        """Name of its directory."""
        return self.path.name

    def run_dir(self, seed: int | None) -> Path:
        """Returns the directory of the run with a seed."""
        return self.path / f"seed-{seed or 1}"

    def score(self) -> Score | None:
        """Returns which figure its runs are measured by; None before the first one has begun.

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
        """Reads the evaluations that all of its runs have reached."""
        score = self.score()
        if score is None:
            return Evaluated(np.zeros(0, np.int64), np.zeros([len(self.seeds), 0]))
        tables = [score.read(self.run_dir(seed)) for seed in self.seeds]
        count = min(len(steps) for steps, _ in tables)
        return Evaluated(
            np.min([steps[:count] for steps, _ in tables], axis=0),
            np.stack([figures[:count] for _, figures in tables]),
        )
