"""Trackers for a run's metrics, besides CSV files and TensorBoard: `--track NAME`.

A tracker is a class, called with (run directory, name of the x-axis, resume step), that follows
`Tracker`. Trackers of other packages are entry points of the group `rl_replicator.trackers`.
"""

from rl_replicator.runs.trackers.registry import Tracker, Trackers, add_files, check, fail

__all__ = ["Tracker", "Trackers", "add_files", "check", "fail"]
