"""A table that is redrawn in place on a terminal, and printed only at the end elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

_SECONDS_BETWEEN_DRAWINGS = 2.0


class LiveTable:
    """Draws lines over those drawn before.

    Attributes:
      is_live: whether the stream is a terminal. Elsewhere, a refresh is never due.
    """

    def __init__(self, stream: TextIO | None = None):
        """Draws nothing yet.

        Args:
          stream: where to draw. Default: standard output.
        """
        self._stream = stream or sys.stdout
        self.is_live = self._stream.isatty()
        self._next_drawing = 0.0
        self._height = 0

    def is_due(self) -> bool:
        """Returns whether it is time to refresh."""
        return self.is_live and time.monotonic() >= self._next_drawing

    def expedite(self) -> None:
        """Makes the next refresh due immediately."""
        self._next_drawing = 0.0

    def refresh(self, lines: Sequence[str]) -> None:
        """Draws lines over the previous ones, as many as fit on the terminal."""
        self._next_drawing = time.monotonic() + _SECONDS_BETWEEN_DRAWINGS
        size = shutil.get_terminal_size()
        # A line that wraps or scrolls could not be drawn over.
        shown = [line[: size.columns - 1] for line in lines[: size.lines - 1]]
        up = f"\x1b[{self._height}A" if self._height else ""
        self.print(f"{up}\x1b[J" + "\n".join(shown))
        self._height = len(shown)

    def close(self, text: str) -> None:
        """Replaces the drawn lines by the whole text."""
        if self.is_live and self._height:
            self._stream.write(f"\x1b[{self._height}A\x1b[J")
        self._height = 0
        self.print(text)

    def print(self, words: str) -> None:
        """Prints one or more lines."""
        self._stream.write(words + "\n")
        self._stream.flush()


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows as lines, with the first column aligned left, and all others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
