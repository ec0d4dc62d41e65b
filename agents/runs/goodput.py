"""What restarts have cost a run."""

from pathlib import Path

import numpy as np

from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.progress_line import clock

# With less than this part of its usual speed, the learner stands still or repeats steps.
_STANDS_STILL = 0.5


def line(run_dir: Path) -> str:
    """Returns the line that tells the user of a run whose nodes were started again.

    Args:
      run_dir: directory of the run.
    """
    lost, trained = lost_seconds(run_dir)
    share = 1.0 - lost / trained if trained else 0.0
    return f"goodput {share:.1%}: the learner got no further for {lost:.0f} s of {clock(trained)}"


def lost_seconds(run_dir: Path) -> tuple[float, float]:
    """Returns how long the learner did not get further, and how long it has trained.

    It does not get further while it is down, while it repeats steps that a kill has undone, and
    while it waits for a node that is down. Goodput, the steps kept divided by the steps of an
    undisturbed run in the same time, is 1 minus the ratio of the two.

    Args:
      run_dir: directory of the run.

    Returns:
      Seconds lost, and seconds from the first to the last row of the learner's metrics.
    """
    table = read_metrics(run_dir, "learner")
    seconds = table.get("wall_time", np.zeros(0))
    if len(seconds) < 3:
        return 0.0, 0.0
    duration = np.diff(seconds)
    grown = np.diff(table["learner_steps"])
    moved = (grown > 0) & (duration > 0)
    if not moved.any():
        return 0.0, float(seconds[-1] - seconds[0])
    rate = float(np.median(grown[moved] / duration[moved]))
    # Steps that a kill has undone count as negative ones.
    still = grown < _STANDS_STILL * rate * duration
    lost = duration[still] - grown[still] / rate
    return float(lost.sum()), float(seconds[-1] - seconds[0])
