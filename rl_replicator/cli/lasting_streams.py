"""Standard streams that may be lost: a reader such as `head` leaves, or a disk is full."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from rl_replicator.errors import DiskError, is_disk_full

# What a write raises if nobody can read it: of a pipe, a socket, and a terminal that was closed.
_NO_READER = (errno.EPIPE, errno.ECONNRESET, errno.EIO)


def open_closed() -> None:
    """Opens standard streams that are closed (`>&-`) to nowhere.

    Otherwise Python has None in their place, and the next file that is opened gets their number.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # Gets the lowest number that is free.
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Makes `sys.stdout` and `sys.stderr` such streams, and flushes standard output at the end.

    A command that trains must go on when nobody reads what it prints. One that only prints may go
    on too: it ends soon. So a broken pipe that is raised nevertheless is that of something else,
    and a failure.

    Raises:
      DiskError: if a full disk does not take what was printed last; see `outlive_full_disk`.
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
                if getattr(sys, name) is stream:  # A command may have replaced it for good.
                    setattr(sys, name, before[name])


def outlive_full_disk() -> None:
    """Lets what is printed from now on be lost if the disk is full. For commands that train."""
    if isinstance(sys.stdout, PrintedStream):
        sys.stdout.may_be_lost = True


class LastingStream:
    """A text stream that drops what is written once its reader has left, or the disk is full.

    What its encoding lacks, such as bytes of a file's name that are no UTF-8, becomes "?".
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
        """Passes on what was written if there is a reader."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop_all(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _drop_all(self, error: OSError) -> None:
        """Lets all that follows go nowhere, that of libraries and what is still buffered too.

        Raises:
          OSError: the error, if it says something else.
        """
        if error.errno not in _NO_READER and not is_disk_full(error):
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


class PrintedStream(LastingStream):
    """Standard output: that a full disk does not take it is an error of a command that only prints.

    Attributes:
      may_be_lost: whether it is no error.
    """

    may_be_lost = False

    def _drop_all(self, error: OSError) -> None:
        super()._drop_all(error)
        if is_disk_full(error) and not self.may_be_lost:
            raise DiskError(f"cannot write to standard output: {error}") from error
