"""`rl-replicator train NAME [options]`."""

from collections.abc import Sequence
from typing import Any

from rl_replicator.cli import options, trainables
from rl_replicator.errors import UsageError


def run(args: Sequence[str]) -> int:
    """Trains what the first word names; its own dataclass defines the options.

    Args:
      args: the words after `train`.

    Returns:
      The exit status.

    Raises:
      UsageError: after bad input.
    """
    known = trainables.names()
    if not args:
        raise UsageError(
            f"expected something to train ({', '.join(known) or 'none is registered'}), got nothing"
        )
    if args[0] in ("-h", "--help"):
        print(f"usage: rl-replicator train {{{','.join(known)}}} [options]")
        print("       rl-replicator train package.module:make_learner [options]\n")
        print("'rl-replicator train NAME --help' lists the options of NAME.")
        return 0
    trainable = trainables.load(args[0])
    kind = trainable.options_type(args[1:])
    command = f"rl-replicator train {args[0]}"
    chosen: Any = options.parse(kind, command, args[1:], trainable.alternatives())
    return trainable.train(chosen) or 0
