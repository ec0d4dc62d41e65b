"""`rl-replicator eval RUN_DIR`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from rl_replicator.cli import options, trainables
from rl_replicator.errors import UsageError


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Evaluate the newest checkpoint of a run with the deterministic policy."""

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """The run's directory."""
    episodes: int = 10
    """How many episodes."""
    seed: int = 1000
    """Seed of the environment."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise UsageError(f"--episodes: expected at least 1, got {self.episodes}")


def run(args: Sequence[str]) -> int:
    """Evaluates a run."""
    chosen = options.parse(EvalOptions, "rl-replicator eval", args)
    trainable = trainables.of_run(chosen.run_dir)
    return trainable.evaluate(chosen.run_dir, chosen.episodes, chosen.seed) or 0
