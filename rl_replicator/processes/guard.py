"""Kills the process groups that a dead process leaves behind: `python guard.py`.

The kernel kills the leaders of the groups with the process that started them, however that dies,
but not what the leaders have started. The guard reads the numbers of the groups from its standard
input, one a line, a negative one for a group that has ended, and kills those that are left when
the input ends. It uses the standard library alone, to be small.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


class Guard:
    """A process that outlives this one by a moment. Thread-safe."""

    def __init__(self) -> None:
        """Starts the process with the first group to watch."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def watch(self, group: int) -> None:
        """Makes the guard kill a process group if this process dies.

        Args:
          group: number of the group.
        """
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C of the terminal must not end it.
                )
        self._write(group)

    def forget(self, group: int) -> None:
        """Tells the guard that no process of a group is left.

        Args:
          group: number of the group.
        """
        self._write(-group)

    def close(self) -> None:
        """Ends the guard, which kills what it still watches; the next `watch` starts another."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.wait()

    def _write(self, number: int) -> None:
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(OSError, ValueError):  # It was killed, or is closed.
                    self._process.stdin.write(b"%d\n" % number)
                    self._process.stdin.flush()


def main() -> None:
    """Waits until the process that started this one ends, and kills the groups that are left."""
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        number = int(line)
        groups.add(number) if number > 0 else groups.discard(-number)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
