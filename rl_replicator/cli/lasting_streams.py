"""Standard streams that survive the loss of their reader, such as `head`, or a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from rl_replicator.errors import DiskError, is_disk_full

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
def installed() -> Iterator[None]:
    """Makes `sys.stdout` and `sys.stderr` such streams, and flushes standard output at the end.

    A command that trains must continue when nobody reads its output. A command that only prints may
    continue too, because it ends soon. So a broken pipe that is still raised comes from something
    else, and is a failure.

    Raises:
      DiskError: if the last output does not fit on a full disk; see `outlive_full_disk`.
    """
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    lasting = {"stdout": PrintedStream(before["stdout"]), "stderr": LastingStream(before["stderr"])}
    for name, stream in lasting.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        try:
            lasting["stdout"].flush()
        finally:
            for name, stream in lasting.items():
                if getattr(sys, name) is stream:  # A command may have replaced it permanently.
                    setattr(sys, name, before[name])


def outlive_full_disk() -> None:
    """From now on, drops output that does not fit on a full disk. For commands that train."""
    if isinstance(sys.stdout, PrintedStream):
        sys.stdout.may_be_lost = True


class LastingStream:
    """A text stream that drops its output once its reader is gone or the disk is full.

    Characters that its encoding lacks, such as those for file name bytes that are not UTF-8, become
    "?".
    """

    def __init__(self, stream: TextIO):
        """Wraps a stream.

        Args:
          stream: a stream with a file descriptor, or one that never loses its reader.
        """
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes the text if there is a reader; returns its length."""
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding
            return self.write(text.encode(encoding, "replace").decode(encoding))
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
        """Discards all further output, including that of libraries and what is still buffered.

        Raises:
          OSError: the error, if it has another cause.
        """
        if error.errno not in _NO_READER and not is_disk_full(error):
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


class PrintedStream(LastingStream):
    """Standard output, for which a full disk is an error if a command only prints.

    Attributes:
      may_be_lost: whether a full disk is no error, because the command trains.
    """

    may_be_lost = False

    def _drop_all(self, error: OSError) -> None:
        super()._drop_all(error)
        if is_disk_full(error) and not self.may_be_lost:
            raise DiskError(f"cannot write to standard output: {error}") from error
