"""The folder for files that live as long as a program; removed when it begins and when it ends."""

import time
from pathlib import Path

from rl_replicator.runs.metrics import space_needed
from rl_replicator.runs.run_directory import RunDirectory


def program_folder(run_dir: Path) -> Path:
    """Returns the folder, which also holds the saves of the learner alone.

    Args:
      run_dir: directory of the run.
    """
    return RunDirectory(run_dir).checkpoints / ".learner"


def seconds_taken(run_dir: Path, before: float) -> float:
    """Returns how long a run has taken; the first call of a program starts its clock.

    Later calls come from a counter that was restarted alone, while the other nodes went on.

    Args:
      run_dir: directory of the run.
      before: seconds that it had taken before the program, from its checkpoint.

    Raises:
      DiskError: if the disk is full.
    """
    clock = program_folder(run_dir) / "clock"
    now = time.time()
    try:
        # At least `before`: the clocks of two machines may differ.
        return max(before, now - float(clock.read_text("utf-8")))
    except (FileNotFoundError, ValueError):  # The latter after a kill during the write.
        with space_needed():
            clock.parent.mkdir(parents=True, exist_ok=True)
            clock.write_text(repr(now - before), "utf-8")
        return before
