"""The command `rl-replicator suite`: schedules the runs, shows the table, writes the results."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.suites import plot, results
from agents.suites import tasks as suites
from agents.suites.anchors import Anchors
from agents.suites.board import Board
from agents.suites.progress import RunStatus, State
from agents.suites.results import ResultRow
from agents.suites.scheduler import Scheduler
from rl_replicator.errors import UsageError, cannot_write, continuable
from rl_replicator.runs import events, selection
from rl_replicator.runs.run_directory import FREE_OPTIONS, SUITE, RunDirectory, runs
from rl_replicator.runs.selection import LeftOut

_LOG = logging.getLogger("agents")
_FAILURE = 1
# Options of its runs that may change when a suite is continued.
_FREE = ("env", "steps", *FREE_OPTIONS)


@dataclasses.dataclass(frozen=True)
class SuitePlan:
    """A suite with all settings of its command line.

    Attributes:
      suite: its tasks.
      steps: environment steps of a run.
      seeds: number of seeds of each task.
      run_dir: the suite's directory.
      agent: name of the agent.
      parallel: number of runs at a time.
      arguments: the arguments of `rl-replicator train`, for every run.
      options: the options that `train` parses from `arguments`, as plain data.
      anchors: published returns at the same number of steps.
    """

    suite: suites.Suite
    steps: int
    seeds: int
    run_dir: Path
    agent: str
    parallel: int
    arguments: tuple[str, ...]
    options: Mapping[str, Any]
    anchors: Anchors

    def command(self, status: RunStatus) -> list[str]:
        """Returns the command of a run."""
        return [
            *(sys.executable, "-m", "rl_replicator.cli.main", "train", self.agent),
            *("--env", status.run.task, "--seed", str(status.run.seed)),
            *("--steps", str(self.steps), "--run-dir", str(status.path), *self.arguments),
        ]

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that all runs in the suite's directory share, except `_FREE`."""
        return {"name": self.agent, **self.options}


def run(plan: SuitePlan) -> int:
    """Runs the unfinished runs, and writes the results of all runs in the suite's directory.

    Args:
      plan: the plan of the suite.

    Returns:
      Exit status: 0 if all runs are done; 1 if one failed; 128 + signal if one ended it.

    Raises:
      DiskError: if the disk is full.
      UsageError: if the directory holds a suite with other settings, or other files, or a run
        cannot be started, or the results cannot be written at the end.
    """
    directory = RunDirectory(plan.run_dir)
    with (
        directory.opened(SUITE, plan.identity, _FREE),
        continuable(f"the suite in {plan.run_dir}"),
    ):
        directory.describe(
            SUITE, plan.identity, {"arguments": list(plan.arguments), **plan.options}
        )
        statuses = [
            RunStatus(one, plan.run_dir / one.name)
            for one in suites.runs(plan.suite.tasks, plan.seeds)
        ]
        for status in statuses:
            if _is_done(plan, status):
                status.state = State.DONE
        board = Board(statuses, plan.steps, plan.anchors)

        def note(status: RunStatus) -> None:
            if status.state is State.DONE and not status.is_complete(plan.steps):
                status.state, status.reason = State.FAILED, "ended before its last evaluation"
            board.note(status)
            if status.state is not State.RUNNING:
                try:
                    _write_results(plan)
                except OSError as error:  # The runs are worth more than their table.
                    _LOG.warning("no results are written before the next run ends: %s", error)

        scheduler = Scheduler(
            plan.command, plan.run_dir / "logs", plan.parallel, note, board.refresh
        )
        number = scheduler.run(statuses)
        board.close()
        try:
            rows, left_out = _write_results(plan)
            plot.draw(rows, plan.steps, plan.anchors, plan.run_dir / "results.png")
        except OSError as error:
            raise cannot_write(
                f"cannot write the results in {plan.run_dir}: {error}; the same command tries "
                "again, and continues unfinished runs",
                error,
            ) from error
        for one in left_out:
            print(f"left out {one}", file=sys.stderr)
        return _conclude(plan, statuses, rows, number)


def _is_done(plan: SuitePlan, status: RunStatus) -> bool:
    """Returns whether a run of this suite is complete, and was not killed before its end."""
    if not (status.is_complete(plan.steps) and _is_of(plan, status.path)):
        return False
    # `train` makes a missing plot or film, but refuses a run that was trained for more steps.
    target = RunDirectory(status.path).config()["options"].get("steps")
    return target != plan.steps or events.is_finished(events.read(status.path))


def _is_of(plan: SuitePlan, path: Path) -> bool:
    """Returns whether this suite has created a run, judging by its agent and directory."""
    config = RunDirectory(path).config()
    made = suites.SuiteRun(config["identity"]["env"], config["identity"]["seed"])
    return config["trainable"] == plan.agent and path.name == made.name


def _write_results(plan: SuitePlan) -> tuple[list[ResultRow], list[LeftOut]]:
    """Writes `results.csv` and `summary.csv` from every run of the suite in the directory.

    Returns:
      The rows, and the runs that are left out: unreadable ones, and others, such as copies.
    """

    def read(path: Path) -> list[ResultRow]:
        rows = results.read_run(path)
        if not _is_of(plan, path):
            raise UsageError("it is not a run of this suite")
        return rows

    paths = [found.path for found in runs(plan.run_dir) if not found.collection]
    found, left_out = selection.readable(sorted(paths), read)
    rows = list(itertools.chain.from_iterable(found))
    results.write(plan.run_dir / "results.csv", rows)
    results.write_summary(plan.run_dir / "summary.csv", rows, plan.steps)
    return rows, left_out


def _conclude(
    plan: SuitePlan,
    statuses: Sequence[RunStatus],
    rows: Sequence[ResultRow],
    number: int | None,
) -> int:
    """Prints the measures and what is missing; returns the exit status."""
    asked = {(status.run.task, status.run.seed) for status in statuses}
    marked = results.at_end((row for row in rows if (row.task, row.seed) in asked), plan.steps)
    if marked:
        for name, interval in results.summarize(marked).items():
            print(f"{name} of {len(marked)} tasks: {interval}")
    paths = [plan.run_dir / name for name in ("results.csv", "results.png")]
    has_others = any((row.task, row.seed) not in asked for row in rows)
    about = ", of all runs there" if has_others else ""
    print(f"results {', '.join(str(path) for path in paths if path.exists())}{about}", flush=True)
    counted = {(row.task, row.seed) for found in marked.values() for row in found}
    for status in statuses:
        if status.state is State.DONE and (status.run.task, status.run.seed) not in counted:
            print(
                f"{status.run} has no evaluation near {plan.steps:,} steps, and is left out of the "
                "means: it was trained for more",
                file=sys.stderr,
            )
    failed = [status for status in statuses if status.state is State.FAILED]
    for status in failed:
        print(f"{status.run} failed, {status.reason}", file=sys.stderr)
    if number is not None:
        print("stopped; the same command continues the suite", flush=True)
        return 128 + number
    return _FAILURE if failed else 0
