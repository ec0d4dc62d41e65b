"""Ends a Ray of a program's own when its launcher is gone: `python guard.py DIRECTORY`.

The kernel kills the daemons with the launcher, but not what they have started: Ray's agents look
for their parent every few seconds, and try to reach the dead daemons for a minute then. This
process waits until its standard input ends, kills what still writes to a log in DIRECTORY, and
removes DIRECTORY. It uses the standard library alone, to be small.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

_ATTEMPTS = 20
_PAUSE_SECS = 0.25


def writers(directory: str) -> list[int]:
    """Returns the processes whose output goes to a file beneath `directory`."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):  # Gone, or somebody else's.
                if os.readlink(f"/proc/{entry}/fd/{descriptor}").startswith(directory + os.sep):
                    found.append(int(entry))
                    break
    return found


def main(directory: str) -> None:
    """Waits for the launcher's end, and cleans up after it."""
    sys.stdin.buffer.read()
    for _ in range(_ATTEMPTS):
        left = writers(directory)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break
        time.sleep(_PAUSE_SECS)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(os.path.realpath(sys.argv[1]))
