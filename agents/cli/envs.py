"""`rl-replicator envs`."""

import dataclasses
import sys
from collections.abc import Sequence

SUMMARY = "list the tasks that can be trained on"


@dataclasses.dataclass(frozen=True)
class EnvsOptions:
    """List the tasks that can be trained on, one per line."""


def run(args: Sequence[str]) -> int:
    """Prints the names of dm_control's tasks, and how other environments are named.

    Args:
      args: the words after the command.

    Returns:
      Exit status 0.

    Raises:
      UsageError: if there are any arguments.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    import environments
    from rl_replicator.cli import options

    options.parse(EnvsOptions, "rl-replicator envs", args)
    print("\n".join(environments.names()))
    print(
        "Also: gym:ID, dm:manipulation/TASK, dm:locomotion/TASK, and package.module:function, a "
        "factory called with seed= that returns a dm_env.Environment or a gymnasium.Env "
        "(docs/environments.md).",
        file=sys.stderr,
    )
    return 0
