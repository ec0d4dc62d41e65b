"""CPU seconds of the test files, by which the suite orders them.

CPU seconds and not wall time, because other programs may use the machine while a run is recorded.
"""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path

import psutil

PATH = Path(__file__).with_name("durations.json")
# Files below this many seconds are not listed.
LONG = 3.0


class Meter:
    """Measures the CPU seconds of each test file in one process that runs tests."""

    def __init__(self, path: Path):
        """Measures nothing yet.

        Args:
          path: where `close` writes the seconds by file.
        """
        self._path = path
        self._seconds: collections.Counter[str] = collections.Counter()
        self._file: str | None = None
        self._before = 0.0

    def enter(self, file: str | None) -> None:
        """Counts what is used from now on for another file; for none if it is None."""
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
    """Returns the seconds of this process and its descendants.

    A process that has ended counts if its parent has waited for it.
    """
    total = sum(os.times()[:4])
    for process in psutil.Process().children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue  # Ended meanwhile.
    return total


def read() -> dict[str, float]:
    """Returns the recorded seconds of the files that take long."""
    return json.loads(PATH.read_text())


def record(directory: Path) -> None:
    """Prints and keeps what the meters of a run have written; other files keep their seconds.

    Args:
      directory: where the meters have written.
    """
    measured: collections.Counter[str] = collections.Counter()
    for path in directory.glob("*.durations"):
        measured.update(json.loads(path.read_text()))
    for file, seconds in measured.most_common():
        print(f"{seconds:7.1f} {file}")
    kept = {file: seconds for file, seconds in read().items() if Path(file).exists()}
    long = {file: round(s) for file, s in (kept | measured).items() if s >= LONG}
    PATH.write_text(json.dumps(long, indent=1, sort_keys=True) + "\n")
