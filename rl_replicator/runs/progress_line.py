"""A line that says how a run is doing."""

import sys
import time
from typing import TextIO

_SECONDS_BETWEEN_LINES = 10.0


class LiveLine:
    """Draws one line over and over on a terminal; elsewhere prints it every ten seconds."""

    def __init__(self, stream: TextIO | None = None):
        """Args:
        stream: where to draw; default: standard error.
        """
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._next_line = 0.0
        self._width = 0

    @property
    def is_due(self) -> bool:
        """Whether `show` would do anything at this moment."""
        return self._live or time.monotonic() >= self._next_line

    def show(self, text: str) -> None:
        """Draws the newest state, if it is due."""
        if not self.is_due:
            return
        self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
        if self._live:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Leaves the last state standing."""
        if self._live and self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0


def clock(seconds: float | None) -> str:
    """Seconds as 1:02:03 or 2:03; "-" where unknown."""
    if seconds is None:
        return "-"
    minutes, second = divmod(int(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"
