"""A trial of an experiment: values of some options, and the runs that train with them."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import Score


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """What trials run, and where. It is sent to other processes.

    Attributes:
      run_dir: directory of the experiment, which all machines share.
      parallel: number of trials at a time.
      address: HOST:PORT of a Ray cluster; None for this machine.
      module: the module that implements `rl-replicator`.
    """

    run_dir: Path
    parallel: int
    module: str
    address: str | None = None

    def runs(self, name: str, values: Mapping[str, str]) -> Sequence[TrialRun]:
        """Returns the runs of a trial, which train side by side.

        Args:
          name: name of the trial.
          values: its values, as in `Trial`.
        """
        raise NotImplementedError

    def written(self, values: Mapping[str, object]) -> dict[str, str]:
        """Returns the values of a trial, perhaps as numbers, as `Trial` has them."""
        return {option: str(value) for option, value in values.items()}


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
    """Returns the step at which an evaluation was due; the last one may come some steps late."""
    if score.end is not None and step >= score.end:
        return score.end
    return step if score.every is None else step // score.every * score.every


def read(path: Path) -> list[Trial]:
    """Reads what `write` wrote; no trials if there is no file."""
    if not path.exists():
        return []
    trials = []
    for plain in json.loads(path.read_text()):
        rows = [TrialEvaluation(**row) for row in plain.pop("evaluations")]
        state = TrialState(plain.pop("state"))
        if state is TrialState.RUNNING:  # In a process that was killed.
            state = TrialState.WAITING
        trials.append(Trial(**plain, state=state, evaluations=rows))
    return trials


def write(path: Path, trials: Sequence[Trial]) -> None:
    """Writes trials as JSON, atomically."""
    plain = [{**dataclasses.asdict(trial), "state": trial.state.value} for trial in trials]
    new = path.with_suffix(".new")
    new.write_text(json.dumps(plain, indent=1) + "\n")
    os.replace(new, path)
