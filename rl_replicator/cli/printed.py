"""Captures what the calling thread prints."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from typing import Literal, TextIO


@contextlib.contextmanager
def by_this_thread(stream: Literal["stdout", "stderr"]) -> Iterator[io.StringIO]:
    """Captures what the calling thread prints; other threads still print to the original stream.

    `contextlib.redirect_stderr` would capture the lines of other threads too, such as those that
    copy the output of a child process, and they would end up in a message.

    Args:
      stream: the stream of `sys` to capture.

    Yields:
      The text so far.
    """
    before = getattr(sys, stream)
    text = _Divided(before)
    setattr(sys, stream, text)
    try:
        yield text
    finally:
        setattr(sys, stream, before)


class _Divided(io.StringIO):
    """Keeps the text of the thread that created it, and passes on that of all others."""

    def __init__(self, others: TextIO):
        super().__init__()
        self._thread, self._others = threading.get_ident(), others

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread:
            return super().write(text)
        return self._others.write(text)

    def flush(self) -> None:
        if threading.get_ident() != self._thread:
            self._others.flush()
