"""`rl-replicator scale RUN_DIR --actors N`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

SUMMARY = "change a run's number of actors, even while it trains: scale RUN_DIR --actors N"


def run(args: Sequence[str]) -> int:
    """Adds actors to a run, or removes some.

    Args:
      args: the words after `scale`.

    Returns:
      Exit status 0.

    Raises:
      UsageError: if an option is wrong, or the run cannot have that many actors.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    import tyro

    from rl_replicator.cli import options, stderr_filter

    @dataclasses.dataclass(frozen=True)
    class ScaleOptions:
        """Change the number of actors of a run, whether it is running or stopped.

        A live run adds actors within seconds. Actors that are removed first finish the steps that
        they were granted. The number also applies when the run is continued with its command.
        """

        run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
        """Directory of the run."""
        actors: int
        """Number of actors."""

    stderr_filter.silence()
    chosen = options.parse(ScaleOptions, "rl-replicator scale", args)
    # Imported after the options have been read, so that mistakes are reported immediately.
    from agents.runs import scaling

    print(scaling.request(chosen.run_dir, chosen.actors))
    return 0
