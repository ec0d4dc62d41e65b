"""Curves of a run: CSV files for programs, TensorBoard for eyes. Imports no TensorFlow."""

import csv
import os
import pathlib
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_replicator import errors

WALL_TIME = "wall_time"


class MetricWriter:
    """Writes `run_dir/metrics/<group>.csv` and `run_dir/tensorboard/<group>/`.

    A group has one writer at a time; several processes may write different groups of a run. Every
    row goes to the operating system at once, so a killed process loses at most the row at hand.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike,
        resume_step: int | None = None,
        x_axis: str = "environment_steps",
    ):
        """Touches no file yet.

        Args:
          run_dir: the run's folder.
          resume_step: where a resumed run continues. Rows beyond it are dropped from a group, for
            they will be made anew, before its first new row. None keeps all rows.
          x_axis: name of the column that holds the step.
        """
        self._run_dir = pathlib.Path(run_dir)
        self._resume_step = resume_step
        self._x_axis = x_axis
        self._groups: dict[str, _Group] = {}
        self._lock = threading.Lock()

    def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """Adds a row. Any thread may call.

        Args:
          group: letters, digits, "_", "-" and "."; the name of the file.
          step: position on the x-axis.
          values: new names may appear at any time; earlier rows are then empty there.
        """
        with self._lock:
            if group not in self._groups:
                self._groups[group] = _Group(self._run_dir, group, self._resume_step, self._x_axis)
            self._groups[group].write(int(step), {k: float(v) for k, v in values.items()})

    def close(self) -> None:
        """Closes the files; a later `write` opens them again."""
        with self._lock:
            for group in self._groups.values():
                group.close()
            self._groups.clear()
            self._resume_step = None


class _Group:
    def __init__(self, run_dir: pathlib.Path, name: str, resume_step: int | None, x_axis: str):
        if not re.fullmatch(r"[\w.-]+", name):
            raise errors.ConfigError(
                f"expected a group of letters, digits, '_', '-' and '.', got {name!r}; rename it"
            )
        # Here, because it takes a while and only a process that writes needs it.
        import tensorboardX

        self._path = run_dir / "metrics" / f"{name}.csv"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._columns, rows = _read_rows(self._path)
        if not self._columns:
            self._columns = [x_axis, WALL_TIME]
        if self._columns[0] != x_axis:
            raise errors.ConfigError(
                f"expected x-axis {x_axis!r} in {self._path}, found {self._columns[0]!r}; "
                "use another run directory"
            )
        if resume_step is not None:
            rows = [row for row in rows if int(row[0]) <= resume_step]
        # The clock of a resumed run goes on where the kept rows end.
        self._start = time.monotonic() - max((float(row[1]) for row in rows), default=0.0)
        self._rewrite(rows)  # Also mends a last row that a killed process left unfinished.
        self._board = tensorboardX.SummaryWriter(
            str(run_dir / "tensorboard" / name),
            flush_secs=1,
            purge_step=None if resume_step is None else resume_step + 1,
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        new = [name for name in values if name not in self._columns]
        if new:
            self._file.close()
            _, rows = _read_rows(self._path)
            self._columns += new
            self._rewrite(rows)
        cells = {name: repr(value) for name, value in values.items()}
        cells[self._columns[0]] = str(step)
        cells[WALL_TIME] = f"{time.monotonic() - self._start:.3f}"
        self._writer.writerow([cells.get(column, "") for column in self._columns])
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        self._board.close()

    def _rewrite(self, rows: list[list[str]]) -> None:
        """Replaces the file in one move, and leaves it open at its end."""
        temporary = self._path.with_suffix(".csv.new")
        width = len(self._columns)
        with temporary.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self._columns)
            writer.writerows(row + [""] * (width - len(row)) for row in rows)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        self._file = self._path.open("a", newline="")
        self._writer: Any = csv.writer(self._file, lineterminator="\n")


def read_metrics(run_dir: str | os.PathLike, group: str) -> dict[str, np.ndarray]:
    """Reads a group, also while it is being written.

    Returns:
      For each column an array [rows]: int64 for the first (the x-axis), float64 for the others,
      with NaN where a row has no value. Empty if the group was never written.
    """
    columns, rows = _read_rows(pathlib.Path(run_dir) / "metrics" / f"{group}.csv")
    result: dict[str, np.ndarray] = {}
    for i, column in enumerate(columns):
        if i == 0:
            result[column] = np.array([int(row[0]) for row in rows], np.int64)
        else:
            cells = [float(row[i]) if row[i] else np.nan for row in rows]
            result[column] = np.array(cells, np.float64)
    return result


def _read_rows(path: pathlib.Path) -> tuple[list[str], list[list[str]]]:
    """The columns and the whole rows; a last row without its end is left out."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return [], []
    lines = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    if not lines:
        return [], []
    return lines[0], [row for row in lines[1:] if len(row) == len(lines[0])]
