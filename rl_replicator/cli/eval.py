"""`rl-replicator eval RUN_DIR [options]`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_replicator.cli import options, trainables
from rl_replicator.errors import UsageError

_COMMAND = "rl-replicator eval"


def run(args: Sequence[str]) -> int:
    """Evaluates the newest checkpoint of a run; the options depend on what it trains.

    Args:
      args: the words after `eval`.

    Returns:
      The exit status.

    Raises:
      UsageError: if the first word is not the directory of a run, or an option is wrong.
    """
    if args and args[0] in ("-h", "--help"):
        print(f"usage: {_COMMAND} RUN_DIR [options]\n")
        print(f"'{_COMMAND} RUN_DIR --help' lists the options of that run.")
        return 0
    if not args or args[0].startswith("-"):
        raise UsageError(
            f"expected RUN_DIR after '{_COMMAND}', got {args[0] if args else 'nothing'}; write "
            f"'{_COMMAND} RUN_DIR [options]'"
        )
    run_dir = Path(args[0])
    trainable = trainables.of_run(run_dir)
    kind = trainable.evaluation_options_type
    chosen: Any = options.parse(kind, f"{_COMMAND} {args[0]}", args[1:])
    arguments = {field.name: getattr(chosen, field.name) for field in dataclasses.fields(chosen)}
    return trainable.evaluate(run_dir, **arguments) or 0
