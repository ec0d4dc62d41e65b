"""The output of processes, and descriptions of how they ended."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO

# Takes a target, "stdout" or "stderr", and a line including its newline.
Writer = Callable[[str, str], None]

# Longer lines are split.
_LINE_BYTES = 1 << 20

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
    """Copies the output of a process line by line, in the background.

    Of text that the process overwrites with "\\r", such as a progress bar, this copies the last.
    """

    def __init__(self, write: Writer, streams: Mapping[str, IO[bytes]]):
        """Starts copying.

        Args:
          write: called with one line at a time.
          streams: pipes from the process by their target, "stdout" or "stderr".
        """
        self._threads = [
            threading.Thread(target=_copy, args=(write, *one), name="copy", daemon=True)
            for one in streams.items()
        ]
        for thread in self._threads:
            thread.start()

    def drain(self, timeout: float) -> None:
        """Waits until all output of a process that has ended is copied.

        Args:
          timeout: seconds to wait: an orphan that inherited the pipes may keep them open.
        """
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _copy(write: Writer, target: str, stream: IO[bytes]) -> None:
    with stream:
        while line := stream.readline(_LINE_BYTES):
            # Text after a "\r" overwrites the text before it.
            states = line.removesuffix(b"\n").split(b"\r")
            shown = next((state for state in reversed(states) if state.strip()), states[0])
            # Copying continues after errors: if the reader of our output is gone, or a script's own
            # stream fails, the process must not block on a full pipe.
            with contextlib.suppress(Exception), _lock:
                write(target, f"{shown.decode(errors='replace')}\n")


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
