"""The time that a run has lost by restarts."""

from pathlib import Path

import numpy as np

from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.progress_line import clock

# Below this fraction of its usual speed, the learner stands still or repeats steps.
_STANDS_STILL = 0.5
# The learner stood still at the end if the time since its last row exceeds this many usual
# intervals between two rows.
_ROWS_MISSED = 3


def line(run_dir: Path, stopped_at: float | None) -> str | None:
    """Returns the line that a run whose nodes were restarted prints at its end.

    Args:
      run_dir: directory of the run.
      stopped_at: seconds after which the run was stopped while it trained; None if it has ended.

    Returns:
      The line; None if the learner has hardly trained.
    """
    found = lost_seconds(run_dir, stopped_at)
    if found is None:
        return None
    lost, trained = found
    share = 1.0 - lost / trained
    return f"goodput {share:.1%}: the learner made no progress for {lost:.0f} s of {clock(trained)}"


def lost_seconds(run_dir: Path, stopped_at: float | None) -> tuple[float, float] | None:
    """Returns how long the learner made no progress, and how long it has trained.

    It makes no progress while it is down, while it repeats steps that a kill has undone, and while
    it waits for a node that is down. Goodput, the steps kept divided by the steps of an undisturbed
    run in the same time, is 1 minus the ratio of the two.

    Args:
      run_dir: directory of the run.
      stopped_at: see `line`.

    Returns:
      Seconds lost, and seconds from the first row of the learner's metrics to the last one, or to
      the stop if the learner stood still before it; None if there are too few rows.
    """
    table = read_metrics(run_dir, "learner")
    seconds = table.get("wall_time", np.zeros(0))
    duration = np.diff(seconds)
    grown = np.diff(table.get("learner_steps", np.zeros(0)))
    moved = (grown > 0) & (duration > 0)
    if not moved.any():
        return None
    rate = float(np.median(grown[moved] / duration[moved]))
    since = 0.0 if stopped_at is None else stopped_at - seconds[-1]
    if since > _ROWS_MISSED * np.median(duration[moved]):
        duration, grown = np.append(duration, since), np.append(grown, 0.0)
    if len(duration) < 2:
        return None
    # Steps that a kill has undone count as negative ones.
    still = grown < _STANDS_STILL * rate * duration
    lost = duration[still] - grown[still] / rate
    return float(lost.sum()), float(duration.sum())
