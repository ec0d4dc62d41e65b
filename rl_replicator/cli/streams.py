"""Standard streams that survive the loss of their reader, such as `head`, or a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from rl_replicator.errors import is_disk_full

# Errors of a write that nobody can read: to a pipe, to a socket, and to a closed terminal.
_NO_READER = (errno.EPIPE, errno.ECONNRESET, errno.EIO)


def open_closed() -> None:
    """Opens the null device in place of standard streams that are closed (`>&-`).

    Otherwise Python has None in their place, and the next file to be opened gets their descriptor.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # Gets the lowest free descriptor, which is `number`.
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


@contextlib.contextmanager
def lasting() -> Iterator[LastingStream]:
    """Makes `sys.stdout` and `sys.stderr` such streams.

    Yields:
      Standard output, which is flushed at the end.
    """
    before = sys.stdout, sys.stderr
    out, err = LastingStream(sys.stdout), LastingStream(sys.stderr)
    sys.stdout, sys.stderr = out, err
    try:
        yield out
    finally:
        out.flush()
        sys.stdout, sys.stderr = before


class LastingStream:
    """A text stream that drops its output once its reader is gone or the disk is full.

    Attributes:
      full_disk: the error of a full disk, if it has lost output.
    """

    def __init__(self, stream: TextIO):
        """Wraps a stream with a file descriptor, or one that never loses its reader."""
        self._stream = stream
        self.full_disk: OSError | None = None
        with contextlib.suppress(AttributeError):  # A test's stream, which encodes nothing.
            stream.reconfigure(errors="replace")  # type: ignore[attr-defined]

    def write(self, text: str) -> int:
        """Writes the text if there is a reader; returns its length."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._drop_all(error)
            return len(text)

    def flush(self) -> None:
        """Flushes the stream if there is a reader."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop_all(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _drop_all(self, error: OSError) -> None:
        """Discards all further output, including that of libraries and what is still buffered."""
        if is_disk_full(error):
            self.full_disk = error
        elif error.errno not in _NO_READER:
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
