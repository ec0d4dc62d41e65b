"""Kills what the nodes of a dead launcher have started: `python guard.py`.

The kernel kills the nodes with the launcher, however that dies, but not the processes that the
nodes have started. This process reads the process groups of the nodes from its standard input, one
number a line, a negative one for a group that has ended, and kills those that are left when the
input ends. It uses the standard library alone, to be small.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


class Guard:
    """The launcher's side: a process that outlives it by a moment."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def watch(self, group: int) -> None:
        """Has the process group killed if this process dies."""
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for the launcher.
                )
        self._write(group)

    def forget(self, group: int) -> None:
        """Notes that no process of the group is left."""
        self._write(-group)

    def close(self) -> None:
        """Ends the guard, which kills what it still watches."""
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
    """Waits for the launcher's end, and kills what its nodes have left."""
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        number = int(line)
        groups.add(number) if number > 0 else groups.discard(-number)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
