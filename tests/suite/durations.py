"""Durations of the test files, by which the suite orders them.

A duration is the CPU seconds of a file plus the seconds in which it waits, not its wall time,
because other programs may use the machine while a run is recorded. The waits count so that files
with long waits start early, beside others that compute.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

PATH = Path(__file__).with_name("durations.json")
# Files that take fewer seconds are not listed.
LONG = 3.0


class Meter:
    """Measures the CPU seconds of each test file in one process that runs tests."""

    def __init__(self, path: Path):
        """Does not start to measure yet.

        Args:
          path: where `close` writes the seconds of each file.
        """
        self._path = path
        self._seconds: collections.Counter[str] = collections.Counter()
        self._file: str | None = None
        self._before = 0.0

    def enter(self, file: str | None) -> None:
        """Attributes the CPU time used from now on to `file`; to no file if it is None."""
        if file == self._file:
            return
        now = _cpu_seconds()
        if self._file is not None:
            self._seconds[self._file] += now - self._before
        self._file, self._before = file, now

    def close(self) -> None:
        """Writes the seconds."""
        self.enter(None)
        self._path.write_text(json.dumps(self._seconds))


def _cpu_seconds() -> float:
    """Returns the CPU seconds of this process and its descendants.

    A process that has ended counts if its parent has waited for it.
    """
    total = sum(os.times()[:4])
    for process in psutil.Process().children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue  # Ended meanwhile.
    return total


class WaitMeter:
    """Measures how long test files wait: none of the threads of their processes is ready to run."""

    def __init__(self) -> None:
        """Starts to measure."""
        self.seconds: collections.Counter[str] = collections.Counter()
        self._last = time.monotonic()

    def sample(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds the time since the last sample to the file of each test that is waiting now.

        Args:
          records: `pid` and `activity` of each process that runs tests; see `plugin.records`.
        """
        now = time.monotonic()
        elapsed, self._last = now - self._last, now
        for record in records:
            if record["activity"] and not _is_ready(record["pid"]):
                self.seconds[record["activity"].partition("::")[0]] += elapsed


def _is_ready(pid: int) -> bool:
    """Returns whether any thread of a process or its descendants is running or blocked on I/O."""
    try:
        process = psutil.Process(pid)
        pids = [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.Error:
        return False
    return any(state in "RD" for each in pids for state in _states(each))


def _states(pid: int) -> list[str]:
    """Returns the states, such as R and S, of those threads of a process that have not ended."""
    states = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            states.append((thread / "stat").read_text().rpartition(") ")[2][:1])
    return states


def read() -> dict[str, float]:
    """Returns the recorded seconds of the long files."""
    return json.loads(PATH.read_text())


def record(directory: Path, waits: Mapping[str, float]) -> None:
    """Prints and saves what the meters of a run have measured; other files keep their seconds.

    Args:
      directory: where each `Meter` has written its file.
      waits: seconds of each file, from the `WaitMeter`.
    """
    measured: collections.Counter[str] = collections.Counter()
    for path in directory.glob("*.durations"):
        measured.update(json.loads(path.read_text()))
    print("CPU s  waits  file")
    for file, seconds in measured.most_common():
        print(f"{seconds:5.0f}  {waits.get(file, 0.0):5.0f}  {file}")
        measured[file] += waits.get(file, 0.0)
    kept = {file: seconds for file, seconds in read().items() if Path(file).exists()}
    long = {file: round(s) for file, s in (kept | measured).items() if s >= LONG}
    PATH.write_text(json.dumps(long, indent=1, sort_keys=True) + "\n")
