"""Standard streams that survive the loss of their reader, such as `head`, or a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from rl_replicator.errors import is_disk_full

# Errors of a write that nobody can read: to a pipe, to a socket, and to a closed terminal.
_NO_READER = (errno.EPIPE, errno.ECONNRESET, errno.EIO)
# Notes that Reverb and TensorFlow's estimates of costs print, and have no switch for. Those of a
# process begin with the node's name, which Ray colors on a terminal.
_NOTE = (
    r"^(\[[a-z_]+/[0-9]+\] |.{0,9}\([a-z_]+/[0-9]+ pid=[^)]*\).{0,9} )?"
    r"(\[reverb/cc/[a-z_/]+\.cc:[0-9]+\] +"
    r"(Initializing|Loading|Metadata for|Still reading|Completed reading|Successfully|"
    r"Table [a-z_]+ and [0-9]+ items|Started|Shutting|Stored|Sampler and server)"
    r"|W[0-9]{4} .* op_level_cost_estimator\.cc:[0-9]+\] Error in PredictCost"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called)"
)


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
    with _without_notes() as own:
        out, err = LastingStream(sys.stdout), LastingStream(own, drops=_NOTE)
        sys.stdout, sys.stderr = out, err
        try:
            yield out
        finally:
            out.flush()
            sys.stdout, sys.stderr = before


@contextlib.contextmanager
def _without_notes() -> Iterator[TextIO]:
    """Filters the notes of libraries out of file descriptor 2.

    The filter is a process and not a thread, so that the last message of a library that aborts
    this process still comes through.

    Yields:
      The stream for Python's own output, which does not pass the filter: that reads whole lines,
      and a progress line has no newline.
    """
    if sys.stderr is not sys.__stderr__:  # A test or a notebook has its own.
        yield sys.stderr
        return
    assert sys.stderr is not None  # See `open_closed`.
    real = os.dup(2)
    try:
        grep = subprocess.Popen(
            ["grep", "--line-buffered", "-vE", _NOTE],
            stdin=subprocess.PIPE,
            stdout=real,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,  # Ctrl-C must not end the filter before the program.
        )
    except OSError:  # A small image has no grep.
        os.close(real)
        yield sys.stderr
        return
    assert grep.stdin is not None
    os.dup2(grep.stdin.fileno(), 2)
    grep.stdin.close()
    try:
        with os.fdopen(real, "w", buffering=1, closefd=False) as own:
            yield own
    finally:
        os.dup2(real, 2)  # Ends the filter's input, unless a child process still holds it open.
        with contextlib.suppress(subprocess.TimeoutExpired):
            grep.wait(0.5)


class LastingStream:
    """A text stream that drops its output once its reader is gone or the disk is full.

    Attributes:
      full_disk: the error of a full disk, if it has lost output.
    """

    def __init__(self, stream: TextIO, drops: str | None = None):
        """Wraps a stream with a file descriptor, or one that never loses its reader.

        Args:
          stream: the stream.
          drops: a regular expression; text that begins so is dropped.
        """
        self._stream = stream
        self._drops = re.compile(drops) if drops else None
        self._is_dropping = False
        self.full_disk: OSError | None = None
        with contextlib.suppress(AttributeError):  # A test's stream, which encodes nothing.
            stream.reconfigure(errors="replace")  # type: ignore[attr-defined]

    def write(self, text: str) -> int:
        """Writes the text if there is a reader; returns its length."""
        is_end = self._is_dropping and text == "\n"  # `print` writes it by itself.
        is_note = bool(self._drops and self._drops.match(text))
        self._is_dropping = is_note and not text.endswith("\n")
        if is_end or is_note:
            return len(text)
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
