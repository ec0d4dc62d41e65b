"""`rl-replicator envs`."""

import dataclasses
import importlib
import sys
from collections.abc import Sequence

from rl_replicator.cli import options


@dataclasses.dataclass(frozen=True)
class EnvsOptions:
    """List the tasks that can be trained on, one a line."""


def run(args: Sequence[str]) -> int:
    """Prints the names that `environments.make` takes."""
    options.parse(EnvsOptions, "rl-replicator envs", args)
    # By name, because this package stands below `environments` and must load without it.
    environments = importlib.import_module("environments")
    print("\n".join(environments.names()))
    print(
        "Also: package.module:function, a factory called with seed= that returns a "
        "dm_env.Environment or a gymnasium.Env.",
        file=sys.stderr,
    )
    return 0
