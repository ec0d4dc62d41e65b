"""Filters the log lines of C++ libraries out of standard error; errors and our own lines pass.

TensorFlow, XLA and Reverb write some lines to file descriptor 2 regardless of their log levels.
"""

import atexit
import contextlib
import os
import re
import subprocess
import sys
from typing import Any

from rl_replicator.cli.lasting_streams import LastingStream

# Reverb's notes, absl's lines of severity INFO and WARNING, and absl's announcement of them. Lines
# of a node that runs as a process begin with the node's name.
_NOISE = (
    r"^(\[[a-z_]+/[0-9]+\] )?"
    r"(\[reverb/cc/platform/tfrecord_checkpointer"
    r"|\[reverb/cc/[^]]*\] *(Started|Shutting|Sampler and server|Stored)"
    r"|[IW][0-9]{4} [0-9:.]+ +[0-9]+ "
    r"|WARNING: All log messages before absl::InitializeLog)"
)


def silence() -> None:
    """Filters file descriptor 2 and `sys.stderr` until the end of this process.

    The filter of file descriptor 2 is a process, `grep`, and not a thread, so that TensorFlow's
    last message still comes through when it aborts this process. Python's `sys.stderr` does not
    pass through that process, which reads whole lines: a progress line has no newline.
    """
    real = os.dup(2)
    try:
        grep = subprocess.Popen(
            ["grep", "--line-buffered", "-vE", _NOISE],
            stdin=subprocess.PIPE,
            stdout=real,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,  # Ctrl-C must not end the filter before the program.
        )
    except OSError:  # Without grep, nothing is filtered.
        os.close(real)
        return
    assert grep.stdin is not None
    os.dup2(grep.stdin.fileno(), 2)
    grep.stdin.close()
    sys.stderr = _Quiet(LastingStream(os.fdopen(real, "w", buffering=1, closefd=False)))

    def restore() -> None:
        os.dup2(real, 2)  # Ends the filter's input, unless a child process still holds it open.
        with contextlib.suppress(subprocess.TimeoutExpired):
            grep.wait(0.5)

    atexit.register(restore)


class _Quiet:
    """A text stream that drops the same lines when a supervisor forwards them from a node."""

    def __init__(self, stream: LastingStream):
        """Wraps a stream."""
        self._stream = stream
        self._noise = re.compile(_NOISE)

    def write(self, text: str) -> int:
        """Writes the text unless it is noise; returns its length."""
        if self._noise.match(text):
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
