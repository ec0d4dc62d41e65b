"""The suites by name, and the runs of a suite."""

import dataclasses
from collections.abc import Sequence

from rl_replicator.errors import UsageError
from rl_replicator.experiments.trial import Trial
from rl_replicator.runs.run_directory import folder_name

_DMC14 = (
    "cartpole:balance_sparse",
    "cartpole:swingup",
    "cartpole:swingup_sparse",
    "ball_in_cup:catch",
    "reacher:easy",
    "reacher:hard",
    "pendulum:swingup",
    "finger:turn_easy",
    "finger:turn_hard",
    "cheetah:run",
    "walker:walk",
    "walker:run",
    "hopper:hop",
    "acrobot:swingup",
)
_DMC_HARD = (
    "fish:swim",
    "quadruped:walk",
    "quadruped:run",
    "humanoid:stand",
    "humanoid:walk",
    "dog:walk",
)
_DMC_PIXELS = (
    "cartpole:balance",
    "cartpole:swingup",
    "ball_in_cup:catch",
    "reacher:easy",
    "walker:walk",
    "cheetah:run",
    "hopper:hop",
    "quadruped:walk",
)


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tasks that are trained with the same settings.

    Attributes:
      name: its name, for users.
      tasks: names of environments.
      arguments: the arguments of `rl-replicator train`, before those of the user.
    """

    name: str
    tasks: tuple[str, ...]
    arguments: tuple[str, ...] = ()


SUITES = {
    suite.name: suite
    for suite in (
        Suite("dmc14", _DMC14),
        Suite("dmc-hard", _DMC_HARD),
        Suite("dmc-pixels", _DMC_PIXELS, ("--pixels",)),
    )
}


def find(words: Sequence[str]) -> Suite:
    """Returns the suite that the words of a command name.

    Args:
      words: the name of a suite, or names of environments.

    Raises:
      UsageError: if there are no words, a task occurs twice, or a suite is not the only word.
    """
    known = ", ".join(SUITES)
    if not words:
        raise UsageError(f"expected a suite ({known}) or tasks such as cartpole:swingup, got none")
    if len(words) == 1 and words[0] in SUITES:
        return SUITES[words[0]]
    for word in words:
        if word in SUITES:
            raise UsageError(f"expected one suite or a list of tasks, got {' '.join(words)}")
        if ":" not in word:
            raise UsageError(
                f"expected a suite ({known}) or a task such as cartpole:swingup, got {word!r}"
            )
        if words.count(word) > 1:
            raise UsageError(f"expected each task once, got {word} {words.count(word)} times")
    return Suite("tasks", tuple(words))


def trials(tasks: Sequence[str], seeds: int) -> list[Trial]:
    """Returns the runs in the order in which they start: all tasks with seed 1, then with seed 2.

    Args:
      tasks: names of environments.
      seeds: number of seeds of each task; the first one is 1.
    """
    return [
        Trial(run_name(task, seed), {"env": task, "seed": str(seed)})
        for seed in range(1, seeds + 1)
        for task in tasks
    ]


def run_name(task: str, seed: int) -> str:
    """Returns the name of a run's directory in the suite's directory."""
    return f"{folder_name(task)}-seed{seed}"
