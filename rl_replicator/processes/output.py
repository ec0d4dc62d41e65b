"""The output of processes, and descriptions of how they ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import IO

# Takes a target, "stdout" or "stderr", and a line including its newline.
Writer = Callable[[str, str], None]

# Longer lines are split.
_LINE_BYTES = 1 << 20
# A pipe holds no more than this, unless root has changed the limit.
_PIPE_BYTES = 1 << 20

_lock = threading.Lock()


def prefixed(prefix: str) -> Writer:
    """Returns a writer to the output of this process.

    Args:
      prefix: text before every line.
    """

    def write(target: str, text: str) -> None:
        # Looked up for every line, because a notebook or a test may replace the stream.
        out = getattr(sys, target)
        if out is None:  # The stream was already closed when this process started.
            return
        encoding = getattr(out, "encoding", None) or "utf-8"
        out.write(f"{prefix}{text}".encode(encoding, "replace").decode(encoding))
        if (flush := getattr(out, "flush", None)) is not None:  # `print` works without it, too.
            flush()

    return write


class LineCopier:
    """Copies what a process writes to a pipe line by line, in a thread of its own.

    Of text that the process overwrites with "\\r", such as a progress bar, this copies the last.
    """

    def __init__(self, write: Writer, target: str, stream: IO[bytes]):
        """Starts copying.

        Args:
          write: called with one line at a time.
          target: "stdout" or "stderr".
          stream: the pipe.
        """
        self._write, self._target, self._stream = write, target, stream
        self._rest = bytearray()
        # Held from each read until the lines are written.
        self._busy = threading.Lock()
        os.set_blocking(stream.fileno(), False)
        threading.Thread(target=self._run, name=f"copy {target}", daemon=True).start()

    def drain(self, timeout: float) -> None:
        """Waits until all output of a process that has ended is copied.

        An orphan that inherited the pipe may keep it open; this does not wait for its output.

        Args:
          timeout: seconds to wait for lines that are being written.
        """
        # In a thread, because our own output may block.
        helper = threading.Thread(target=self._copy_rest, name="drain", daemon=True)
        helper.start()
        helper.join(timeout)

    def _copy_rest(self) -> None:
        with self._busy:
            self._copy(_PIPE_BYTES)
            self._copy(1)  # The end of the pipe, unless an orphan has it.

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        while not self._stream.closed:
            poll.poll()
            with self._busy:
                self._copy(1 << 16)

    def _copy(self, size: int) -> None:
        """Copies up to `size` bytes, if there are any; the caller must hold the lock."""
        if self._stream.closed:
            return
        try:
            chunk = os.read(self._stream.fileno(), size)
        except BlockingIOError:
            return
        if not chunk:
            self._stream.close()
            chunk = b"\n" if self._rest else b""  # The last line may lack a newline.
        self._rest += chunk
        if b"\n" in chunk:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                self._write_line(_visible(line))
        if len(self._rest) > _LINE_BYTES:
            self._write_line(_visible(self._rest))
            self._rest = bytearray()

    def _write_line(self, line: bytearray) -> None:
        # Copying continues after errors: if the reader of our output is gone, or a script's own
        # stream fails, the process must not block on a full pipe.
        with contextlib.suppress(Exception), _lock:
            self._write(self._target, f"{line.decode(errors='replace')}\n")


def _visible(line: bytearray) -> bytearray:
    """Returns the visible text of a line: text after a "\\r" overwrites the text before it."""
    states = line.split(b"\r")
    return next((state for state in reversed(states) if state.strip()), states[0])


def describe_end(code: int) -> str:
    """Describes the end of a process, such as "was killed by SIGKILL".

    Args:
      code: exit status, or the negative number of the signal that killed it.
    """
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # A real-time signal.
        return f"was killed by signal {-code}"
