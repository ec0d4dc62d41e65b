"""Curves and images of a run: CSV files for programs, event files of TensorBoard, and trackers.

Does not import TensorFlow.
"""

import contextlib
import csv
import io
import os
import pathlib
import re
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rl_replicator import errors
from rl_replicator.runs.trackers import Trackers

WALL_TIME = "wall_time"
_EVENTS = "events.out.tfevents."


@contextlib.contextmanager
def space_needed() -> Iterator[None]:
    """Turns an error in writing a file of metrics into one line.

    Raises:
      DiskError: after an OSError, most likely because of a full disk.
    """
    try:
        yield
    except OSError as error:
        raise errors.DiskError(
            f"cannot write the metrics of the run: {error}; {errors.remedy(error)}, then continue "
            "with the same --run-dir"
        ) from error


class MetricWriter:
    """Writes `run_dir/metrics/<group>.csv` and `run_dir/tensorboard/<group>/`.

    The trackers that the run's settings name (`rl_replicator.runs.trackers`) get every row as well.
    A group has one writer at a time; several processes may write different groups of a run. Every
    row is passed to the operating system immediately, so a killed process loses at most one row.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike,
        x_axis: str,
        resume_step: int | None = None,
        seconds: float = 0.0,
    ):
        """Touches no file yet.

        Args:
          run_dir: the run's directory.
          x_axis: name of the column that holds the step.
          resume_step: where a resumed run continues. The first new row of a group removes its rows
            beyond this step, because the run will write them again. None keeps all rows.
          seconds: duration of the run before now; `wall_time` continues from here in all groups.
        """
        self._run_dir = pathlib.Path(run_dir)
        self._resume_step = resume_step
        self._x_axis = x_axis
        self._start = time.monotonic() - seconds
        self._tables: dict[str, _Table] = {}
        self._boards: dict[str, EventFile] = {}
        self._trackers: Trackers | None = None
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Duration of the run so far, without the time between interruption and resume."""
        return time.monotonic() - self._start

    def check(self, group: str, names: Iterable[str], reserved: Iterable[str] = ()) -> None:
        """Checks that metrics do not have the names of columns that every row of a group has.

        Args:
          group: see `write`.
          names: names of the metrics.
          reserved: names of further columns, besides the x-axis and `wall_time`.

        Raises:
          ConfigError: if a metric has the name of such a column.
        """
        taken = (self._x_axis, WALL_TIME, *reserved)
        for name in names:
            if name in taken:
                raise errors.ConfigError(
                    f"expected metrics with other names than {', '.join(taken)}, which are columns "
                    f"of metrics/{group}.csv already, got a metric {name!r}; rename it"
                )

    def write(
        self,
        group: str,
        step: int,
        values: Mapping[str, float],
        clocks: Mapping[str, float] | None = None,
    ) -> None:
        """Adds a row. Thread-safe.

        Args:
          group: letters, digits, "_", "-" and "."; the name of the file.
          step: position on the x-axis.
          values: new names may appear at any time; earlier rows are then empty there.
          clocks: further columns, before those of `values`, which must have other names.

        Raises:
          ConfigError: if `group` has other characters, its file has another x-axis, or a value has
            the name of the x-axis, of a clock, or `wall_time`.
          DiskError: if it cannot be written, for example because the disk is full.
        """
        clocks = clocks or {}
        self.check(group, values, clocks)
        values = {**clocks, **values}
        with self._lock, space_needed():
            numbers = {name: float(value) for name, value in values.items()}
            self._table(group).write(int(step), self.seconds, numbers)
            row = (group, int(step), self.seconds, numbers)
            self._all_trackers().each(lambda tracker: tracker.write(*row))
            board = self._board(group)
            for name, value in numbers.items():
                board.add_scalar(name, value, step)
            board.flush()

    def write_rows(self, group: str, step: int, rows: Iterable[Mapping[str, float]]) -> None:
        """Adds several rows of one step, only to the CSV file. Thread-safe.

        Args:
          group: see `write`.
          step: position on the x-axis.
          rows: the values of each row.

        Raises:
          DiskError: see `write`.
        """
        with self._lock, space_needed():
            for values in rows:
                self._table(group).write(int(step), self.seconds, values)

    def write_image(self, group: str, step: int, name: str, image: np.ndarray) -> None:
        """Adds an image, only for TensorBoard. Thread-safe.

        Args:
          group: see `write`.
          step: position on the x-axis.
          name: the name of the image.
          image: [height, width, channels] uint8, with 1 or 3 channels.

        Raises:
          DiskError: see `write`.
        """
        with self._lock, space_needed():
            board = self._board(_checked(group))
            board.add_image(name, image, step)
            board.flush()

    def discard_beyond_resume(self, group: str) -> None:
        """Removes the rows of a group beyond `resume_step` now, if it has any rows.

        TensorBoard hides them from now on. Otherwise a run that is continued again before the
        group's next row would leave them there.

        Args:
          group: see `write`.

        Raises:
          DiskError: see `write`.
        """
        with self._lock, space_needed():
            if self._path(group).exists():
                self._table(group)
                self._board(group).flush()

    def close(self) -> None:
        """Closes the files; a later `write` opens them again.

        Raises:
          DiskError: see `write`.
        """
        with self._lock, space_needed():
            for table in self._tables.values():
                table.close()
            for board in self._boards.values():
                board.close()
            self._tables.clear()
            self._boards.clear()
            if self._trackers is not None:
                self._trackers.each(lambda tracker: tracker.close())
                self._trackers = None
            self._resume_step = None

    def _path(self, group: str) -> pathlib.Path:
        return self._run_dir / "metrics" / f"{_checked(group)}.csv"

    def _table(self, group: str) -> "_Table":
        if group not in self._tables:
            self._tables[group] = _Table(self._path(group), self._x_axis, self._resume_step)
        return self._tables[group]

    def _all_trackers(self) -> Trackers:
        if self._trackers is None:
            self._trackers = Trackers(self._run_dir, self._x_axis)
        return self._trackers

    def _board(self, group: str) -> "EventFile":
        if group not in self._boards:
            purge_step = None if self._resume_step is None else self._resume_step + 1
            folder = self._run_dir / "tensorboard" / group
            self._boards[group] = EventFile(folder, purge_step)
        return self._boards[group]


class _Table:
    """A CSV file with the columns x-axis, wall time, and one for each metric."""

    def __init__(self, path: pathlib.Path, x_axis: str, resume_step: int | None):
        self._path = path
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
        self._rewrite(rows)  # Also removes a last row that a killed process left unfinished.

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        new = [name for name in values if name not in self._columns]
        if new:
            self._file.close()
            _, rows = _read_rows(self._path)
            self._columns += new
            self._rewrite(rows)
        cells = {name: repr(value) for name, value in values.items()}
        cells[self._columns[0]] = str(step)
        cells[WALL_TIME] = f"{seconds:.3f}"
        self._writer.writerow([cells.get(column, "") for column in self._columns])
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _rewrite(self, rows: list[list[str]]) -> None:
        """Replaces the file atomically, and leaves it open at its end."""
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


class EventFile:
    """Scalars and images for TensorBoard.

    tensorboardX's own `SummaryWriter` passes them to a thread. If that thread cannot write, for
    example because the disk is full, it ends, and after ten more values every caller blocks
    forever. Here the caller writes and gets the error. tensorboardX's file writer is not used
    either: whenever it passes data to the operating system, it waits for the disk, which is too
    slow for each row.
    """

    def __init__(self, folder: pathlib.Path, purge_step: int | None):
        """Creates a new file.

        Args:
          folder: created if it does not exist; its files form one curve.
          purge_step: TensorBoard hides points of earlier files from this step on; None for none.

        Raises:
          OSError: if the file cannot be written.
        """
        # Imported here because it is slow, and only a process that writes needs it.
        from tensorboardX import record_writer, summary
        from tensorboardX.proto import event_pb2

        self._summary, self._events = summary, event_pb2
        self._checksum = record_writer.masked_crc32c
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{_EVENTS}{_next_second(folder):010d}.{socket.gethostname()}"
        self._file = (folder / name).open("wb")
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(session_log=start, step=purge_step)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Adds a point to a curve.

        Args:
          name: name of the curve.
          value: its value.
          step: its position.

        Raises:
          OSError: if it cannot be written.
        """
        self._write(summary=self._summary.scalar(name, value), step=step)

    def add_image(self, name: str, image: np.ndarray, step: int) -> None:
        """Adds an image.

        Args:
          name: its name.
          image: [height, width, channels] uint8, with 1 or 3 channels.
          step: its position.

        Raises:
          OSError: if it cannot be written.
        """
        self._write(summary=self._summary.image(name, image, dataformats="HWC"), step=step)

    def flush(self) -> None:
        """Passes what was added to the operating system, which keeps it if this process is killed.

        Raises:
          OSError: if it cannot be written.
        """
        self._file.flush()

    def close(self) -> None:
        """Passes everything to the operating system and closes the file.

        Raises:
          OSError: if it cannot be written.
        """
        self._file.close()

    def _write(self, **fields: object) -> None:
        data = self._events.Event(wall_time=time.time(), **fields).SerializeToString()
        size = struct.pack("<Q", len(data))
        for part in (size, data):
            self._file.write(part + struct.pack("<I", self._checksum(part)))


def _next_second(folder: pathlib.Path) -> int:
    """Returns the time of a new file, in seconds, which is later than that of all others.

    TensorBoard reads the files in the order of their names, and the clock may have been set back.
    """
    found = (re.match(rf"{re.escape(_EVENTS)}(\d+)\.", path.name) for path in folder.iterdir())
    return max(int(time.time()), *(int(name[1]) + 1 for name in found if name), 0)


def read_metrics(run_dir: str | os.PathLike, group: str) -> dict[str, np.ndarray]:
    """Reads a group, even while it is being written.

    Args:
      run_dir: the run's directory.
      group: see `MetricWriter.write`.

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


def _checked(group: str) -> str:
    if not re.fullmatch(r"[\w.-]+", group):
        raise errors.ConfigError(
            f"expected a group of letters, digits, '_', '-' and '.', got {group!r}; rename it"
        )
    return group


def _read_rows(path: pathlib.Path) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and the complete rows; drops a last row that has no end of line."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return [], []
    lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))
    if not lines:
        return [], []
    return lines[0], [row for row in lines[1:] if len(row) == len(lines[0])]
