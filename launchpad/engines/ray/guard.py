"""Ends a program's own Ray when the launcher dies: `python guard.py DIRECTORY PID`.

The kernel kills the daemons with the launcher, but not what they have started: Ray's agents check
for their parent every few seconds, and then try to reach the dead daemons for a minute. This
process waits until its standard input ends. Unless it has read DONE by then, it kills all processes
that have a file in DIRECTORY open for writing, except the launcher, PID, whose Ray may have failed
to start. Then it removes DIRECTORY. It uses only the standard library, to be small.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import sys
import time

DONE = b"done"
_ATTEMPTS = 20
_PAUSE_SECS = 0.25


def writers(directory: str, launcher: int) -> list[int]:
    """Returns the processes that have a file beneath `directory` open for writing."""
    processes = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    return [pid for pid in processes - {launcher, os.getpid()} if _writes_to(directory, pid)]


def _writes_to(directory: str, pid: int) -> bool:
    with contextlib.suppress(OSError):  # Gone, or another user's.
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # Closed meanwhile.
                link = f"/proc/{pid}/fd/{name}"
                is_within = os.readlink(link).startswith(directory + os.sep)
                if is_within and os.lstat(link).st_mode & stat.S_IWUSR:
                    return True
    return False


def _kill_writers(directory: str, launcher: int) -> None:
    for _ in range(_ATTEMPTS):
        left = writers(directory, launcher)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(_PAUSE_SECS)


def main(directory: str, launcher: int) -> None:
    """Waits for the launcher's end, and cleans up after it."""
    # A signal to the whole job is for the launcher.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGHUP))
    if sys.stdin.buffer.read() != DONE:
        _kill_writers(directory, launcher)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(os.path.realpath(sys.argv[1]), int(sys.argv[2]))
