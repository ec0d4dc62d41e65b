"""Reads the evaluations of the runs that are passed to a command."""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from rl_replicator.runs import plots, selection
from rl_replicator.runs.plots import EvaluatedRun


def read(paths: Sequence[Path], figure: str | None) -> list[EvaluatedRun]:
    """Reads runs, and prints on stderr which ones are left out, and why.

    Args:
      paths: directories of runs, or of suites and other folders, which stand for all their runs.
      figure: see `plots.read`.

    Returns:
      At least one run.

    Raises:
      UsageError: if no run can be read.
    """
    runs, left_out = selection.readable(paths, functools.partial(plots.read, figure=figure))
    if not runs:
        raise selection.none_left(left_out)
    for one in left_out:
        print(f"left out {one}", file=sys.stderr)
    return runs
