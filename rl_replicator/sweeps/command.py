"""Implements `rl-replicator sweep`: runs trials, shows the table, and prints the best settings."""

from __future__ import annotations

import csv
import dataclasses
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_replicator.errors import continuable
from rl_replicator.runs.plain_data import to_plain
from rl_replicator.runs.run_directory import FREE_OPTIONS, SWEEP, RunDirectory
from rl_replicator.sweeps import board
from rl_replicator.sweeps.population import Population
from rl_replicator.sweeps.runner import SweepRunner, TrialScheduler
from rl_replicator.sweeps.search import Parameter
from rl_replicator.sweeps.study import SearchPlan, Study
from rl_replicator.sweeps.trial import SweepTrial, TrialState

_LOG = logging.getLogger(__name__)
_FREE = tuple(f"options.{name}" for name in FREE_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of `rl-replicator train`, for every run of a sweep.

    Attributes:
      parts: the arguments, split before each word that selects a dataclass of a union.
      places: index of the part to which each searched option belongs.
    """

    parts: tuple[tuple[str, ...], ...]
    places: Mapping[str, int]

    def words(
        self, settings: Iterable[tuple[Parameter, str]] = (), own: Sequence[str] = ()
    ) -> list[str]:
        """Returns the arguments together with the given ones.

        Args:
          settings: searched options with a value for each.
          own: options of the run that are in no union.
        """
        parts = [list(part) for part in self.parts]
        for parameter, value in settings:
            parts[self.places[parameter.option]] += parameter.words(value)
        parts[0] += own
        return [word for part in parts for word in part]


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """A sweep with everything that its command line specifies.

    Attributes:
      program: words of the command that runs `rl-replicator`.
      name: what is trained.
      arguments: the arguments of every run.
      quiet: further arguments of every run, which are not printed with the best settings.
      options: the options that `train` parses from `arguments`, as plain data.
      defaults: value of each searched option without the search, as written.
      search: how to search.
      trials: number of trials.
      seeds: the seeds of the runs of a trial; a single None if there is no option for the seed.
      parallel: number of trials at a time.
      retry_failed: whether trials that have failed are tried again.
      run_dir: the sweep's directory.
    """

    program: tuple[str, ...]
    name: str
    arguments: Arguments
    quiet: tuple[str, ...]
    options: Mapping[str, Any]
    defaults: Mapping[str, str]
    search: SearchPlan
    trials: int
    seeds: tuple[int | None, ...]
    parallel: int
    retry_failed: bool
    run_dir: Path

    def words(self, trial: SweepTrial, own: Sequence[str] = ()) -> list[str]:
        """Returns the arguments with the values of a trial, and options that the sweep sets."""
        settings = ((one, trial.values[one.option]) for one in self.search.parameters)
        return self.arguments.words(settings, own)

    def command(self, trial: SweepTrial, seed: int | None) -> list[str]:
        """Returns the command of a trial's run with a seed."""
        own = [*self.quiet, *own_words(seed, trial.run_dir(seed))]
        return [*self.program, "train", self.name, *self.words(trial, own)]

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that must not change when the sweep is continued, except `_FREE`; plain data."""
        search, options = to_plain(self.search), self.options
        plain = {"name": self.name, "seeds": len(self.seeds), "search": search, "options": options}
        # A population cannot grow: its trials train side by side.
        return plain | ({"trials": self.trials} if self.search.scheduler == "pbt" else {})


def own_words(seed: int | None, run_dir: Path) -> list[str]:
    """Returns the words with which a sweep sets the seed, if there is one, and the directory."""
    return [*(() if seed is None else ("--seed", str(seed))), "--run-dir", str(run_dir)]


def run(plan: SweepPlan) -> int:
    """Runs the trials that have not ended, and writes the results of all.

    Args:
      plan: the plan of the sweep.

    Returns:
      Exit status: 0 if all trials have ended; 1 if all that have ended failed, which a line on
      stderr reports; 128 + signal if a signal ended the sweep.

    Raises:
      DiskError: if the disk is full.
      UsageError: if the directory holds a sweep with other settings or other files, Optuna is not
        installed, or the results cannot be written at the end.
    """
    directory = RunDirectory(plan.run_dir)
    with (
        directory.opened(SWEEP, plan.identity, _FREE),
        continuable(f"the sweep in {plan.run_dir}"),
    ):
        directory.describe(SWEEP, plan.identity, {"arguments": plan.arguments.words()})
        study = Study(plan.run_dir / "trials.journal", plan.search, plan.seeds)
        study.prefer(plan.defaults)
        # This comes first, because a population marks trials whose weights are gone as failed.
        if plan.retry_failed:
            study.retry()
        scheduler: TrialScheduler = study
        if plan.search.interval is not None:
            scheduler = Population(study, plan.search.interval)
            trials = scheduler.trials(plan.trials)
        else:
            trials = study.trials()
        drawn = board.SweepBoard(trials, max(plan.trials, len(trials)))

        def note(trial: SweepTrial) -> None:
            drawn.note(trial)
            try:
                if trial.state is not TrialState.RUNNING:
                    _write(plan.run_dir / "results.csv", trials)
                _write_rounds(plan.run_dir / "rounds.csv", study)
            except OSError as error:  # A table that cannot be written must not end the runs.
                _LOG.warning("results are not written until the next trial changes: %s", error)

        runner = SweepRunner(
            scheduler, plan.command, plan.run_dir / "logs", plan.parallel, note, drawn.refresh
        )
        number = runner.run(trials, plan.trials)
        drawn.close()
        _write(plan.run_dir / "results.csv", trials)
        _conclude(plan, study, trials)
        if number is not None:
            print("stopped; the same command continues the sweep", flush=True)
            return 128 + number
        failed = [trial for trial in trials if trial.state is TrialState.FAILED]
        # Trials that were interrupted because the first ones had failed are `RUNNING`: they can
        # still be continued.
        if any(trial.state not in (TrialState.FAILED, TrialState.RUNNING) for trial in trials):
            return 0
        reason = next((f" (trial {one.number} {one.reason})" for one in failed if one.reason), "")
        print(
            f"rl-replicator: error: expected trials that run, but {_all(len(failed))} failed"
            f"{reason}; see {plan.run_dir / 'logs'}; correct the code and add --retry-failed, or "
            "choose other options and another --run-dir",
            file=sys.stderr,
        )
        return 1


def _all(count: int) -> str:
    return "the only one" if count == 1 else f"all {count}"


def _write(path: Path, trials: Sequence[SweepTrial]) -> None:
    """Writes the trials as CSV, atomically."""
    columns = ["trial", "state", "evaluations", "steps", "score", "lowest_seed", "highest_seed"]
    rows: list[list[object]] = [[*columns, *(trials[0].values if trials else ())]]
    for trial in trials:
        evaluated = trial.evaluated()
        cells: list[object] = ["", "", "", ""]
        if evaluated.count:
            last = evaluated.scores[:, -1]
            figures = (f"{x:.6g}" for x in (last.mean(), last.min(), last.max()))
            cells = [evaluated.steps[-1], *figures]
        rows.append(
            [trial.number, trial.state.value, evaluated.count, *cells, *trial.values.values()]
        )
    _write_rows(path, rows)


def _write_rounds(path: Path, study: Study) -> None:
    """Writes the comparisons of a population as CSV, atomically; nothing before the first one."""
    rows: list[list[object]] = []
    for number, decided in enumerate(study.rounds(), start=1):
        for trial, (step, score) in decided["scores"].items():
            copy = decided["copies"].get(trial, {})
            rows.append([number, trial, step, f"{score:.6g}", copy.get("source", "")])
            rows[-1] += [copy.get("values", {}).get(one.option, "") for one in study.parameters]
    if rows:
        options = [f"new_{one.option}" for one in study.parameters]
        _write_rows(path, [["round", "trial", "step", "score", "copied_from", *options], *rows])


def _write_rows(path: Path, rows: Sequence[Sequence[object]]) -> None:
    new = path.with_suffix(".csv.new")
    with new.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    os.replace(new, path)


def _conclude(plan: SweepPlan, study: Study, trials: Sequence[SweepTrial]) -> None:
    """Prints the importance of the options, the best trial, and its settings as a command."""
    shares = study.importance()
    if shares:
        words = [f"{option} {share:.0%}" for option, share in shares.items()]
        print(f"importance: {', '.join(words)}")
    print(f"results {plan.run_dir / 'results.csv'}", flush=True)
    done = [trial for trial in board.ranked(trials) if trial.state is TrialState.DONE]
    if not done or not done[0].has_evaluations():  # Someone has deleted their runs.
        return
    best = done[0]
    score, evaluated = best.score(), best.evaluated()
    assert score is not None
    seeds = f" over {len(best.seeds)} seeds" if len(best.seeds) > 1 else ""
    print(f"best: trial {best.number} with {score.figure} {evaluated.means[-1]:.4g}{seeds}:")
    words = ["rl-replicator", "train", plan.name, *plan.words(best)]
    if len(best.lineage) > 1:
        for stage in best.lineage:
            values = ", ".join(f"{option} {value}" for option, value in stage.values.items())
            print(f"  trial {stage.trial} from {stage.origin}: {values}")
        print("no single command has this schedule; its last settings, from the start:")
    print(shlex.join(words), flush=True)
