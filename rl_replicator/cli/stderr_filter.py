"""Keeps the C++ libraries' chatter off the screen; errors and everything of ours pass.

TensorFlow, XLA and Reverb write some lines to file descriptor 2 whatever their log levels say.
"""

import atexit
import contextlib
import os
import re
import subprocess
import sys
from typing import Any, TextIO

# Reverb's notes, lines of severity INFO and WARNING in absl's form, and what announces them. A node
# that runs as a process has its name before the line.
_NOISE = (
    r"^(\[[a-z_]+/[0-9]+\] )?"
    r"(\[reverb/cc/platform/tfrecord_checkpointer"
    r"|\[reverb/cc/[^]]*\] *(Started|Shutting|Sampler and server|Stored)"
    r"|[IW][0-9]{4} [0-9:.]+ +[0-9]+ "
    r"|WARNING: All log messages before absl::InitializeLog)"
)


def silence() -> None:
    """Filters file descriptor 2 and `sys.stderr` from here to the end of this process.

    The filter is a process, `grep`, and not a thread: when TensorFlow aborts, its last words must
    still come through. Python's own `sys.stderr` does not pass through it, so that a progress line
    can be drawn without an end of line.
    """
    real = os.dup(2)
    try:
        grep = subprocess.Popen(
            ["grep", "--line-buffered", "-vE", _NOISE],
            stdin=subprocess.PIPE,
            stdout=real,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,  # Ctrl-C ends the program first, and the filter with it.
        )
    except OSError:  # A system without grep has the noise.
        os.close(real)
        return
    assert grep.stdin is not None
    os.dup2(grep.stdin.fileno(), 2)
    grep.stdin.close()
    sys.stderr = _Quiet(os.fdopen(real, "w", buffering=1, closefd=False))

    def restore() -> None:
        os.dup2(real, 2)  # The filter sees the end of its input, unless a child still has it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            grep.wait(0.5)

    atexit.register(restore)


class _Quiet:
    """A text stream that drops the same lines, when a node's process has sent them."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._noise = re.compile(_NOISE)

    def write(self, text: str) -> int:
        if self._noise.match(text):
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
