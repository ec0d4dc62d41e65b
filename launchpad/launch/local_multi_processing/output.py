"""What a process prints, and how its end is told."""

from __future__ import annotations

import signal
import sys
import threading
from typing import IO

_lock = threading.Lock()


def pump(name: str, stream: IO[bytes], target: str) -> None:
    """Prints the lines of a process with its name before them, until its end.

    Args:
      name: Of the process.
      stream: Its output.
      target: "stdout" or "stderr", of this process.
    """
    for line in iter(stream.readline, b""):
        text = line.decode(errors="replace")
        text = text if text.endswith("\n") else text + "\n"
        try:
            with _lock:
                out = getattr(sys, target)
                out.write(f"[{name}] {text}")
                out.flush()
        except (OSError, ValueError):
            pass  # Nobody reads the launcher's output; go on emptying the pipe.


def describe(code: int) -> str:
    """Describes the end of a process.

    Args:
      code: Its exit status; the negative number of the signal that killed it.
    """
    if code >= 0:
        return f"the process ended with status {code}"
    try:
        return f"the process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"the process was killed by signal {-code}"
