"""`rl-replicator suite SUITE [options]`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from agents.suites.command import SuitePlan

SUMMARY = "train a suite of tasks and seeds: suite dmc14 --seeds 3"

_COMMAND = "rl-replicator suite"
# Options of the runs that the suite itself sets.
_OURS = ("--env", "--seed", "--resume", "--no-resume")


def run(args: Sequence[str]) -> int:
    """Trains all tasks and seeds of a suite that are not done yet.

    Args:
      args: the words after `suite`.

    Returns:
      The exit status: 0 if all runs are done, 1 if one failed, 130 or 143 after a signal.

    Raises:
      UsageError: after bad input; nothing was started.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    from agents.suites import command
    from rl_replicator.cli import options
    from rl_replicator.errors import UsageError

    kind = _options_type()
    ours, theirs = options.divide(args, options.names_of(kind))
    chosen = options.parse(kind, _COMMAND, ours)
    options.check_no_config(theirs, _COMMAND)
    for word in theirs:
        if word.partition("=")[0].replace("_", "-") in _OURS:
            raise UsageError(f"expected no {word} after '{_COMMAND}', which sets it for each run")
    plan = _plan(chosen, theirs)
    return command.run(plan)


def _options_type() -> Any:
    """Returns the dataclass of the options of the command itself."""
    import tyro

    from rl_replicator.errors import check_option

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
        """Directory of the suite, with a directory for each run, results.csv and results.png."""
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

    return SuiteOptions


def _plan(chosen: Any, theirs: Sequence[str]) -> "SuitePlan":
    """Returns the plan of a suite.

    Args:
      chosen: the options of the command itself.
      theirs: the options of its runs.

    Raises:
      UsageError: if a run would reject the options.
      EnvironmentUsageError: if a task cannot be made with these options.
    """
    from agents.suites import anchors, tasks
    from agents.suites.command import SuitePlan
    from agents.task import Task
    from rl_replicator.cli import trainables
    from rl_replicator.runs.plain_data import to_plain

    suite = tasks.find(chosen.tasks)
    arguments = [*suite.arguments, *theirs]
    trainable = trainables.load(chosen.agent)
    # Raises for a mistake in the options of the runs, before any run has started.
    settings = trainable.parse(
        ["--env", suite.tasks[0], "--steps", str(chosen.steps), *arguments], {}
    )
    if suite.name not in tasks.SUITES:
        template = getattr(settings, "task", None) or Task("")
        for name in suite.tasks:
            dataclasses.replace(template, name=name).make(seed=0).close()
    path = chosen.anchors or anchors.DEFAULT
    observations = "pixels" if "--pixels" in arguments else "state"
    published = (
        anchors.Anchors.read(path, observations, chosen.steps)
        if chosen.anchors or path.exists()
        else anchors.Anchors({})
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
