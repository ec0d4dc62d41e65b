"""`rl-replicator suite SUITE [options]`: trains the runs, shows the table, writes the results."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from agents.suites import board, results
from agents.suites.results import Anchors, ResultRow
from agents.suites.tasks import SUITES, Suite, find, run_name
from agents.suites.tasks import trials as trials_of
from agents.task import Task
from rl_replicator.cli import options, trainables
from rl_replicator.errors import UsageError, check_option
from rl_replicator.experiments import driver
from rl_replicator.experiments.experiment import Experiment
from rl_replicator.experiments.trial import Trial, TrialRun, TrialState
from rl_replicator.runs import evaluations, events, statistics
from rl_replicator.runs.plain_data import to_plain
from rl_replicator.runs.run_directory import FREE_OPTIONS, SUITE, RunDirectory, runs

_COMMAND = "rl-replicator suite"
# Options of the runs that the suite itself sets.
_OURS = ("--env", "--seed", "--resume", "--no-resume", "--config")


@dataclasses.dataclass(frozen=True)
class SuiteOptions:
    """Train a suite of tasks, each with several seeds, and compare it with published results.

    A suite is dmc14 (state), dmc-hard (state), dmc-pixels, or a list of tasks. Finished runs
    are skipped, and stopped runs are continued. Other options, such as --agent.n-step or
    --actors, are passed to 'rl-replicator train'.
    """

    tasks: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="SUITE | TASK [TASK ...]", help_behavior_hint="(required)"),
    ]
    """A suite, or tasks such as cartpole:swingup."""
    steps: int = 100_000
    """Environment steps of each run."""
    seeds: int = 1
    """Number of seeds for each task: 1, 2, ..."""
    run_dir: Path = Path("runs/suite")
    """Directory of the suite, with a directory for each run, and results.csv."""
    agent: str = "d4pg"
    """The agent to train."""
    parallel: int = 1
    """Number of runs at a time. Each gets its share of the processors."""
    address: str | None = None
    """HOST:PORT of a Ray cluster whose machines train the runs. Default: this machine."""
    anchors: Path | None = None
    """CSV file of published returns. Default: docs/results/anchors.csv of the repository."""

    def __post_init__(self) -> None:
        for name in ("steps", "seeds", "parallel"):
            value = getattr(self, name)
            check_option(value >= 1, name, "at least 1", value)


def suite(args: Sequence[str]) -> int:
    """Trains a suite of tasks and seeds: suite dmc14 --seeds 3"""
    ours, theirs = options.divide(args, options.names_of(SuiteOptions))
    chosen = options.parse(SuiteOptions, _COMMAND, ours)
    options.check_not_given(theirs, _OURS, _COMMAND)
    return driver.run(_plan(chosen, theirs))


def _plan(chosen: SuiteOptions, theirs: Sequence[str]) -> SuitePlan:
    """Returns the plan of a suite.

    Args:
      chosen: the options of the command itself.
      theirs: the options of its runs.

    Raises:
      UsageError: if a run would reject the options.
      EnvironmentUsageError: if a task cannot be made with these options.
    """
    suite = find(chosen.tasks)
    arguments = [*suite.arguments, *theirs]
    trainable = trainables.load(chosen.agent)
    if hasattr(trainable, "make_learner"):
        raise UsageError(f"--agent: expected an agent, got {chosen.agent!r}, a learner")
    # Raises for a mistake in the options of the runs, before any run has started.
    settings = trainable.parse(
        ["--env", suite.tasks[0], "--steps", str(chosen.steps), *arguments], {}
    )
    if suite.name not in SUITES:
        template = getattr(settings, "task", None) or Task("")
        for name in suite.tasks:
            dataclasses.replace(template, name=name).make(seed=0).close()
    path = chosen.anchors or results.ANCHORS
    observations = "pixels" if "--pixels" in arguments else "state"
    published = (
        Anchors.read(path, observations, chosen.steps)
        if chosen.anchors or path.exists()
        else Anchors({})
    )
    return SuitePlan(
        suite=suite,
        steps=chosen.steps,
        seeds=chosen.seeds,
        run_dir=chosen.run_dir,
        agent=chosen.agent,
        parallel=chosen.parallel,
        address=chosen.address,
        module="rl_replicator.cli.main",
        arguments=tuple(arguments),
        options=to_plain(settings),
        anchors=published,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuitePlan(Experiment):
    """A suite with all settings of its command line.

    Attributes:
      suite: its tasks.
      steps: environment steps of a run.
      seeds: number of seeds of each task.
      agent: name of the agent.
      arguments: the arguments of `rl-replicator train`, for every run.
      options: the options that `train` parses from `arguments`, as plain data.
      anchors: published returns at the same number of steps.
    """

    kind = SUITE
    free = ("env", "steps", *FREE_OPTIONS)

    suite: Suite
    steps: int
    seeds: int
    agent: str
    arguments: tuple[str, ...]
    options: Mapping[str, Any]
    anchors: Anchors

    def runs(self, name: str, values: Mapping[str, str]) -> list[TrialRun]:
        """Returns the run of a task and a seed."""
        path = self.run_dir / name
        words = [
            *(self.agent, "--env", values["env"], "--seed", values["seed"]),
            *("--steps", str(self.steps), "--run-dir", str(path), *self.arguments),
        ]
        return [TrialRun(words, path, self.run_dir / "logs" / f"{name}.log")]

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that all runs in the suite's directory share, except `free`."""
        return {"name": self.agent, **self.options}

    @property
    def settings(self) -> dict[str, Any]:
        """See `Experiment`."""
        return {"arguments": list(self.arguments), **self.options}

    def begun(self) -> list[Trial]:
        """Returns all runs; those that are complete are done."""
        trials = trials_of(self.suite.tasks, self.seeds)
        for one in trials:
            if _is_done(self, one):
                one.state = TrialState.DONE
        return trials

    def text(self, trials: Sequence[Trial]) -> str:
        """Returns the table, with a row for each task."""
        return board.text(trials, self.run_dir, self.steps, self.anchors)

    def noted(self, trials: Sequence[Trial], one: Trial) -> str:
        """See `Experiment`."""
        if one.state is TrialState.DONE and not _is_complete(self, one):
            one.state, one.reason = TrialState.FAILED, "ended before its last evaluation"
        if one.state is not TrialState.RUNNING:
            _write_results(self)
        return f"{_title(one)} is {one.state.value}" + (one.reason and f": {one.reason}")

    def conclude(self, trials: Sequence[Trial], is_stopped: bool) -> int:
        """Returns 1 if a run has failed, else 0."""
        rows, left_out = _write_results(self)
        for path, reason in left_out.items():
            print(f"left out {path}: {reason}", file=sys.stderr)
        asked = {(one.values["env"], int(one.values["seed"])): one for one in trials}
        marked = results.at_end((row for row in rows if (row.task, row.seed) in asked), self.steps)
        scores = [np.array([row.return_mean for row in found]) for found in marked.values()]
        for name, measure in statistics.MEASURES.items() if scores else ():
            interval = statistics.bootstrap(measure, scores)
            print(f"{name} of {len(scores)} tasks: {interval}")
        has_others = any((row.task, row.seed) not in asked for row in rows)
        about = ", of all runs there" if has_others else ""
        path = self.run_dir
        print(f"results {path / 'results.csv'}{about}; 'rl-replicator plot {path}' draws them")
        counted = {(row.task, row.seed) for found in marked.values() for row in found}
        for key, one in asked.items():
            if one.state is TrialState.DONE and key not in counted:
                print(
                    f"{_title(one)} has no evaluation near {self.steps:,} steps, and is left out "
                    "of the means: it was trained for more",
                    file=sys.stderr,
                )
        failed = [one for one in trials if one.state is TrialState.FAILED]
        for one in failed:
            print(f"{_title(one)} failed, {one.reason}", file=sys.stderr)
        return int(bool(failed))


def _title(one: Trial) -> str:
    return f"{one.values['env']} seed {one.values['seed']}"


def _is_complete(plan: SuitePlan, one: Trial) -> bool:
    """Returns whether a run was evaluated after all of its steps."""
    rows = board.rows_of(plan.run_dir / one.name)
    return bool(rows) and rows[-1].environment_steps >= plan.steps


def _is_done(plan: SuitePlan, one: Trial) -> bool:
    """Returns whether a run of this suite is complete, and was not killed before its end."""
    path = plan.run_dir / one.name
    if not (_is_complete(plan, one) and _is_of(plan, path)):
        return False
    # `train` makes a missing plot or film, but refuses a run that was trained for more steps.
    target = RunDirectory(path).config()["options"].get("steps")
    return target != plan.steps or events.is_finished(events.read(path))


def _is_of(plan: SuitePlan, path: Path) -> bool:
    """Returns whether this suite has created a run, judging by its agent and directory."""
    config = RunDirectory(path).config()
    name = run_name(config["identity"]["env"], config["identity"]["seed"])
    return config["trainable"] == plan.agent and path.name == name


def _write_results(plan: SuitePlan) -> tuple[list[ResultRow], Mapping[Path, str]]:
    """Writes `results.csv` from every run of the suite in the directory.

    Returns:
      The rows, and the runs that are left out: unreadable ones, and others, such as copies.
    """

    def read(path: Path) -> list[ResultRow]:
        rows = results.read_run(path)
        if not _is_of(plan, path):
            raise UsageError("it is not a run of this suite")
        return rows

    paths = [found.path for found in runs(plan.run_dir) if not found.collection]
    found, left_out = evaluations.readable(sorted(paths), read)
    rows = list(itertools.chain.from_iterable(found))
    results.write(plan.run_dir / "results.csv", rows)
    return rows, left_out
