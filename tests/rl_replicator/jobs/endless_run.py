"""A process that waits for Ctrl-C, and then saves."""

import sys

_PROGRAM = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
try:
    (folder / "is_ready").touch()
    time.sleep(600)
except KeyboardInterrupt:
    (folder / "saved").touch()
"""


def endless_run(folder):
    """Returns its command, and two functions that tell whether it runs and whether it has saved."""
    command = [sys.executable, "-c", _PROGRAM, str(folder)]
    return command, (folder / "is_ready").exists, (folder / "saved").exists
