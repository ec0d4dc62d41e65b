"""The runs that are passed to a command: folders are expanded, and unusable runs are left out."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rl_replicator.errors import UsageError
from rl_replicator.runs import plots, run_directory

_Run = TypeVar("_Run")


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A directory without a usable run.

    Attributes:
      path: the directory.
      reason: why, one line.
    """

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def expanded(paths: Sequence[Path]) -> list[Path]:
    """Returns directories of runs, each once; a folder of runs is replaced by its runs.

    Args:
      paths: directories of runs, or of sweeps, suites and other folders, which stand for all their
        runs.
    """
    found: dict[str, Path] = {}
    for path in paths:
        for one in run_directory.runs_within(path) or [path]:
            # `Path.resolve` fails for a link that leads to itself.
            found.setdefault(os.path.realpath(one), one)
    return list(found.values())


def readable(
    paths: Sequence[Path], read: Callable[[Path], _Run]
) -> tuple[list[_Run], list[LeftOut]]:
    """Reads runs, and leaves out those that cannot be read.

    Args:
      paths: see `expanded`.
      read: reads the run in a directory.

    Returns:
      The results of `read`, and the directories for which it raised.
    """
    found, left_out = [], []
    for path in expanded(paths):
        try:
            found.append(read(path))
        except (UsageError, OSError, ValueError, KeyError, TypeError) as error:
            text = str(error) if isinstance(error, UsageError) else _broken(error)
            left_out.append(LeftOut(path, " ".join(text.split())))
    return found, left_out


def evaluated(paths: Sequence[Path], figure: str | None) -> list[plots.EvaluatedRun]:
    """Reads evaluations, and prints on stderr which runs are left out, and why.

    Args:
      paths: see `expanded`.
      figure: see `plots.read`.

    Returns:
      At least one run.

    Raises:
      UsageError: if no run can be read.
    """
    runs, left_out = readable(paths, functools.partial(plots.read, figure=figure))
    if not runs:
        raise none_left(left_out)
    for one in left_out:
        print(f"left out {one}", file=sys.stderr)
    return runs


def none_left(left_out: Sequence[LeftOut]) -> UsageError:
    """Returns the error of a command that has no usable run.

    Args:
      left_out: what `readable` has left out.
    """
    # Most reasons name the path themselves.
    return UsageError(
        "; ".join(one.reason if str(one.path) in one.reason else str(one) for one in left_out)
    )


def _broken(error: Exception) -> str:
    return f"expected whole files, got {type(error).__name__}: {error}"
