"""The line that shows the progress of a run."""

import collections
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

_SECONDS_BETWEEN_LINES = 10.0
_RATE_WINDOW_SECONDS = 15.0


class ProgressLine:
    """Redraws one line on a terminal; prints it every ten seconds elsewhere."""

    def __init__(self, stream: TextIO | None = None):
        """Draws nothing yet.

        Args:
          stream: where to draw. Default: standard error.
        """
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._is_lost = False
        self._next_line = 0.0
        self._width = 0

    @property
    def is_due(self) -> bool:
        """Whether `show` would draw now."""
        return not self._is_lost and (self._live or time.monotonic() >= self._next_line)

    def show(self, text: str) -> None:
        """Draws `text`, if that is due; on a terminal, as much of it as fits in one row.

        After a failed write, nothing is drawn any more.
        """
        if not self.is_due:
            return
        self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
        if self._live:
            # "\r" returns to the start of the current row: the rows of a wrapped text would remain.
            columns = shutil.get_terminal_size().columns - 1
            text = text[:columns]
            self._write("\r" + text.ljust(min(self._width, columns)))
            self._width = len(text)
        else:
            self._write(text + "\n")

    def close(self) -> None:
        """Ends the line and keeps its last text."""
        if self._live and self._width:
            self._write("\n")
            self._width = 0

    def _write(self, text: str) -> None:
        if self._is_lost:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # A closed terminal or a full disk must not end a run of hours.
            self._is_lost = True


class RateWindow:
    """How fast counters grew in the last seconds, rather than since the start."""

    def __init__(self) -> None:
        self._samples: collections.deque[tuple[float, tuple[int, ...]]] = collections.deque()

    def add(self, seconds: float, *counts: int) -> None:
        """Adds a sample.

        Args:
          seconds: time of the sample, on any monotonic clock.
          *counts: the counters; the same number of them in each call.
        """
        self._samples.append((seconds, counts))
        while len(self._samples) > 2 and seconds - self._samples[0][0] > _RATE_WINDOW_SECONDS:
            self._samples.popleft()

    def growth(self) -> tuple[int, ...]:
        """Returns by how much each counter grew within the window."""
        (_, first), (_, last) = self._samples[0], self._samples[-1]
        return tuple(b - a for a, b in zip(first, last, strict=True))

    def rates(self) -> tuple[float, ...]:
        """Returns by how much each counter grew per second.

        The rate is 0 after a single sample, and for a counter that fell: a restarted node repeats
        steps.
        """
        seconds = self._samples[-1][0] - self._samples[0][0]
        return tuple(max(0.0, grown / seconds) if seconds > 0 else 0.0 for grown in self.growth())


def progress_text(done: int, total: int, rate: float, parts: Sequence[str]) -> str:
    """Returns the text of the line, without a newline.

    Args:
      done: steps done.
      total: steps of the whole run.
      rate: steps per second.
      parts: what else to show.
    """
    remaining = (total - done) / rate if rate > 0 else None
    return " | ".join([f"{done:,}/{total:,} steps", f"ETA {clock(remaining)}", *parts])


def clock(seconds: float | None) -> str:
    """Formats seconds as 1:02:03 or 2:03, and None as "-"."""
    if seconds is None:
        return "-"
    minutes, second = divmod(int(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"
