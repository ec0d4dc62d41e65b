"""`rl-replicator replay RUN_DIR`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

SUMMARY = "describe the contents of a run's replay: replay RUN_DIR"


def run(args: Sequence[str]) -> int:
    """Prints figures of the replay in a run's newest checkpoint.

    Args:
      args: the words after `replay`.

    Returns:
      Exit status 0.

    Raises:
      UsageError: if an option is wrong, or there is no replay.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    import json

    import tyro

    from rl_replicator.cli import options

    @dataclasses.dataclass(frozen=True)
    class ReplayOptions:
        """Describe the replay in a run's newest checkpoint: size, ages, priorities."""

        run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
        """Directory of the run."""
        json: bool = False
        """Print the figures as JSON."""

    chosen = options.parse(ReplayOptions, "rl-replicator replay", args)
    # Imported after the options have been read, so that mistakes are reported immediately.
    from agents.runs import replay_figures

    figures = replay_figures.read(chosen.run_dir)
    if chosen.json:
        print(json.dumps(figures, indent=2))
    else:
        print(*replay_figures.lines(figures), sep="\n")
    return 0
