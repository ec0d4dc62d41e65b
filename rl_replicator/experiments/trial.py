"""A trial of an experiment: values of some options, and the runs that train with them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pydantic

from rl_replicator.runs import atomic_file
from rl_replicator.runs.evaluations import Score
from rl_replicator.runs.run_directory import RunDirectory


class TrialState(enum.Enum):
    """The state of a trial."""

    WAITING = "waiting"
    """Not begun, or interrupted before its end."""
    RUNNING = "running"
    STOPPED = "stopped"
    """Worse than others at the same evaluation, so it was not continued."""
    DONE = "done"
    FAILED = "failed"
    """One of its runs ended with an error."""


@dataclasses.dataclass(frozen=True)
class TrialEvaluation:
    """An evaluation that all runs of a trial have in common.

    Attributes:
      steps: the lowest step of any run.
      mean: mean of the figures of the runs.
      low: the lowest figure.
      high: the highest figure.
    """

    __pydantic_config__ = pydantic.ConfigDict(ser_json_inf_nan="constants")

    steps: int
    mean: float
    low: float
    high: float


@dataclasses.dataclass
class Trial:
    """A trial and what is known of it.

    Attributes:
      name: its name, which is unique in the experiment.
      values: option -> value, as written on the command line.
      state: its state.
      reason: why it failed, one line.
      figure: name of the figure of its evaluations; "" before the first one.
      is_highest_best: whether a higher figure is better.
      evaluations: its evaluations so far.
      origin: the trial that it has been copied from, and when, in words; "" if it has not.
    """

    name: str
    values: Mapping[str, str]
    state: TrialState = TrialState.WAITING
    reason: str = ""
    figure: str = ""
    is_highest_best: bool = True
    evaluations: list[TrialEvaluation] = dataclasses.field(default_factory=list)
    origin: str = ""


def objective(found: Sequence[TrialEvaluation], is_highest_best: bool) -> float:
    """Returns the newest figure, negated if the lowest is best; -1e30 if it is undefined.

    Args:
      found: evaluations of a trial.
      is_highest_best: whether a higher figure is better.
    """
    mean = found[-1].mean if found else np.nan
    return -1e30 if np.isnan(mean) else mean if is_highest_best else -mean


@dataclasses.dataclass(frozen=True)
class TrialRun:
    """A run of a trial.

    Attributes:
      words: the words after `rl-replicator train`.
      path: its directory.
      log: the file that receives its output.
    """

    words: Sequence[str]
    path: Path
    log: Path


def score_of(run: TrialRun) -> Score | None:
    """Returns the figure that measures a run; None if it has none, or has not begun."""
    directory = RunDirectory(run.path)
    return Score.of(directory.config()) if directory.exists else None


def evaluations(runs: Sequence[TrialRun]) -> list[TrialEvaluation]:
    """Reads the evaluations that all runs of a trial have reached.

    A run may lack an evaluation that others have: the first one, if its learner had not begun, or
    one that was due during another. So they are matched by the steps at which they were due.
    """
    tables = []
    for run in runs:
        score = score_of(run)
        if score is None:
            return []
        steps, figures = score.read(run.path)
        rows = zip(steps.tolist(), figures.tolist(), strict=True)
        tables.append({_due(step, score): (step, figure) for step, figure in rows})
    common = sorted(set.intersection(*map(set, tables)))
    found = []
    for mark in common:
        own = [table[mark][1] for table in tables]
        first = min(table[mark][0] for table in tables)
        found.append(TrialEvaluation(first, float(np.mean(own)), min(own), max(own)))
    return found


def _due(step: int, score: Score) -> int:
    """Returns the step at which an evaluation was due."""
    if score.end is not None and step >= score.end:
        return score.end
    return step if score.every is None else step // score.every * score.every


def read(path: Path) -> list[Trial]:
    """Reads what `write` wrote; no trials if there is no file."""
    if not path.exists():
        return []
    trials = pydantic.TypeAdapter(list[Trial]).validate_json(path.read_bytes())
    for one in trials:
        if one.state is TrialState.RUNNING:  # In a process that was killed.
            one.state = TrialState.WAITING
    return trials


def write(path: Path, trials: Sequence[Trial]) -> None:
    """Writes trials as JSON, atomically."""
    with atomic_file.replacing(path) as new:
        new.write_bytes(pydantic.TypeAdapter(list[Trial]).dump_json(list(trials), indent=1))
