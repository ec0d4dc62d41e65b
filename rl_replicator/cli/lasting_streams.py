"""Standard streams whose reader may leave, such as `head`, `tee`, or a connection that drops."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

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
    """
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    lasting = {name: LastingStream(stream) for name, stream in before.items()}
    for name, stream in lasting.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        lasting["stdout"].flush()
        for name, stream in lasting.items():
            if getattr(sys, name) is stream:  # A command may have replaced it for good.
                setattr(sys, name, before[name])


class LastingStream:
    """A text stream that drops what is written once its reader has left.

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
          OSError: the error, if it does not say that the reader has left.
        """
        if error.errno not in _NO_READER:
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
