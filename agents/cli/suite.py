"""`rl-replicator suite SUITE [options]`."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

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
    import tyro

    from agents.suites import anchors, command, tasks
    from rl_replicator.cli import options, trainables
    from rl_replicator.errors import UsageError, check_option

    @dataclasses.dataclass(frozen=True)
    class SuiteOptions:
        """Train a suite of tasks, each with several seeds, and compare it with published results.

        A suite is dmc14 (state), dmc-hard (state), dmc-pixels, or a list of tasks. Runs that are
        done are skipped, runs that were stopped are continued. Other options, such as
        --agent.n-step or --actors, are passed to 'rl-replicator train'.
        """

        tasks: Annotated[
            tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SUITE | TASK [TASK ...]")
        ]
        """A suite, or tasks such as cartpole:swingup."""
        steps: int = 100_000
        """Environment steps of each run."""
        seeds: int = 1
        """Number of seeds of each task: 1, 2, ..."""
        run_dir: Path = Path("runs/suite")
        """Directory of the suite: one directory for each run, results.csv and results.png."""
        agent: str = "d4pg"
        """The agent to train."""
        parallel: int = 1
        """Runs at a time. Each gets its share of the processors."""
        anchors: Path | None = None
        """CSV file of published returns. Default: docs/results/anchors.csv of the repository."""

        def __post_init__(self) -> None:
            for name in ("steps", "seeds", "parallel"):
                value = getattr(self, name)
                check_option(value >= 1, name, "at least 1", value)

    own = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(SuiteOptions)}
    ours, theirs = _divide(args, own | {"--help"})
    chosen = options.parse(SuiteOptions, _COMMAND, ours)
    suite = tasks.find(chosen.tasks)
    for word in theirs:
        if word.partition("=")[0].replace("_", "-") in _OURS:
            raise UsageError(f"expected no {word} after '{_COMMAND}', which sets it for each run")
    arguments = [*suite.arguments, *theirs]
    trainable = trainables.load(chosen.agent)
    # Raises for a mistake in the options of the runs, before any run has started.
    settings: Any = options.parse(
        trainable.options_type(arguments),
        f"rl-replicator train {chosen.agent}",
        ["--env", suite.tasks[0], "--steps", str(chosen.steps), *arguments],
        trainable.alternatives(),
    )
    path = chosen.anchors or anchors.DEFAULT
    observations = "pixels" if "--pixels" in arguments else "state"
    published = (
        anchors.Anchors.read(path, observations, chosen.steps)
        if chosen.anchors or path.exists()
        else anchors.Anchors({})
    )
    return command.run(
        command.SuitePlan(
            suite=suite,
            steps=chosen.steps,
            seeds=chosen.seeds,
            run_dir=chosen.run_dir,
            agent=chosen.agent,
            parallel=chosen.parallel,
            arguments=tuple(arguments),
            options=json.loads(json.dumps(dataclasses.asdict(settings), default=str)),
            anchors=published,
        )
    )


def _divide(args: Sequence[str], own: set[str]) -> tuple[list[str], list[str]]:
    """Divides the words of the command into those of the suite and those of its runs.

    Args:
      args: the words after `suite`.
      own: options of the suite.

    Returns:
      The words before the first option and the options in `own` with their values; all others.
    """
    ours: list[str] = []
    theirs: list[str] = []
    target = ours
    for word in args:
        if word == "-h":
            word = "--help"
        if word.startswith("--"):
            name = word.partition("=")[0].replace("_", "-")
            target = ours if name in own else theirs
        target.append(word)
    return ours, theirs
