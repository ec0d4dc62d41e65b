"""What processes print, and how messages describe their end."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO

# Takes a target, "stdout" or "stderr", and a line with its end.
Writer = Callable[[str, str], None]

_lock = threading.Lock()


def prefixed(prefix: str) -> Writer:
    """Returns a writer to the output of this process.

    Args:
      prefix: text before every line.
    """

    def write(target: str, text: str) -> None:
        # Looked up for every line: a notebook or a test may replace it.
        out = getattr(sys, target)
        if out is None:  # The stream was closed before this process began.
            return
        encoding = getattr(out, "encoding", None) or "utf-8"
        out.write(f"{prefix}{text}".encode(encoding, "replace").decode(encoding))
        out.flush()

    return write


class LineCopier:
    """Copies the lines of a process, in the background."""

    def __init__(self, write: Writer, streams: Mapping[str, IO[bytes]]):
        """Starts to copy.

        Args:
          write: takes the lines, one at a time.
          streams: pipes from the process by their target, "stdout" or "stderr".
        """
        self._write = write
        self._threads = [
            threading.Thread(target=self._copy, args=stream, name=f"copy {stream[0]}", daemon=True)
            for stream in streams.items()
        ]
        for thread in self._threads:
            thread.start()

    def drain(self, timeout: float) -> None:
        """Waits until all lines of an ended process are copied.

        Args:
          timeout: seconds to wait. An orphan that inherited the pipes may keep them open.
        """
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _copy(self, target: str, stream: IO[bytes]) -> None:
        with stream:
            for line in iter(stream.readline, b""):
                text = f"{line.decode(errors='replace').rstrip(chr(10))}\n"
                # If the reader of our output is gone, the process must not block on a full pipe.
                with _lock, contextlib.suppress(OSError, ValueError):
                    self._write(target, text)


def describe_end(code: int) -> str:
    """Describes the end of a process, such as "was killed by SIGKILL".

    Args:
      code: exit status; the negative number of the signal that killed it.
    """
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # A real-time signal.
        return f"was killed by signal {-code}"
