"""Waits for other threads or processes."""

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
