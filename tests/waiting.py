"""Waits for something that other threads or processes do."""

import time


def wait_until(condition, seconds=60.0, pause=0.01):
    """Waits until a condition holds, and returns what it gave.

    Args:
      condition: called again and again, with this pause, in seconds.
      seconds: how long it may take.
      pause: see `condition`.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(pause)
    return found
