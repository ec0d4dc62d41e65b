"""`rl-replicator migrate RUN_DIR`."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from rl_replicator.cli import options, trainables


@dataclasses.dataclass(frozen=True)
class MigrateOptions:
    """Bring the directory of a run that was made by an earlier version up to this version.

    The run can then be continued. The old files are kept next to the new ones.
    """

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """Directory of the run."""


def run(args: Sequence[str]) -> int:
    """Migrates a run and prints what was changed.

    Args:
      args: the words after `migrate`.

    Returns:
      Exit status 0.

    Raises:
      UsageError: if there is no run, it cannot be written, or a newer version made it.
    """
    run_dir = options.parse(MigrateOptions, "rl-replicator migrate", args).run_dir
    # Runs of a trainable without this method are continued as they are, or refused.
    find = getattr(trainables.of_run(run_dir), "migrate", None)
    changes = [] if find is None else find(run_dir)
    if not changes:
        print(f"{run_dir} needs no change")
        return 0
    print(*changes, sep="\n")
    print(f"continue with: rl-replicator train --run-dir {shlex.quote(str(run_dir))}")
    return 0
