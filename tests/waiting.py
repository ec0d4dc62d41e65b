"""Waits for other threads or processes."""

import os
import subprocess
import sys
import time


def wait_until(condition, seconds=150.0, pause=0.01):
    """Waits until a condition holds, and returns its value.

    Args:
      condition: function called repeatedly until its value is true.
      seconds: longest time to wait.
      pause: seconds between calls.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(pause)
    return found


def run_python(*words, **environment):
    """Runs a Python interpreter to its end; returns its exit status and what it has printed.

    Args:
      *words: its arguments.
      **environment: environment variables to add.
    """
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
    )
