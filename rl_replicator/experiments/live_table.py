"""A table that is redrawn in place on a terminal, and printed only at the end elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

_SECONDS_BETWEEN_DRAWINGS = 2.0


class LiveTable:
    """Draws a table over its previous state; elsewhere than on a terminal, prints what changes."""

    def __init__(self, draw: Callable[[], str], stream: TextIO | None = None):
        """Draws nothing yet.

        Args:
          draw: returns the table.
          stream: where to draw. Default: standard output.
        """
        self._draw = draw
        self._stream = stream or sys.stdout
        self._is_live = self._stream.isatty()
        self._next_drawing = 0.0
        self._height = 0

    def note(self, line: str) -> None:
        """Redraws the table; elsewhere than on a terminal, prints a line that says what is new."""
        if self._is_live:
            self._next_drawing = 0.0
            self.refresh()
        else:
            self._print(line)

    def refresh(self) -> None:
        """Redraws the table on a terminal if it is due: as many lines as fit."""
        if not self._is_live or time.monotonic() < self._next_drawing:
            return
        self._next_drawing = time.monotonic() + _SECONDS_BETWEEN_DRAWINGS
        size = shutil.get_terminal_size()
        # A line that wraps or scrolls could not be drawn over.
        shown = [line[: size.columns - 1] for line in self._draw().splitlines()[: size.lines - 1]]
        self._print(self._up() + "\x1b[J" + "\n".join(shown))
        self._height = len(shown)

    def close(self) -> None:
        """Shows the whole table a last time."""
        self._print(f"{self._up()}\x1b[J{self._draw()}" if self._height else self._draw())
        self._height = 0

    def _up(self) -> str:
        return f"\x1b[{self._height}A" if self._height else ""

    def _print(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()
