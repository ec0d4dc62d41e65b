"""Kills the process groups that a dead process leaves behind: `python guard.py`.

The kernel kills the leaders of the groups with the process that started them, however that dies,
but not what the leaders have started. The guard reads the numbers of the groups from its standard
input, one a line, a negative one for a group that has ended. It kills those that are left when it
reads 0, when the input ends, or when the process that started it has ended: what that process has
forked may hold the input open. It uses the standard library alone, to be small.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

_END = 0
# A guard that does not end by itself was stopped by a signal, or has no processor.
_SECONDS_TO_END = 60.0


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
                    [sys.executable, "-I", "-S", __file__, str(os.getpid())],
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
        if process is None or process.stdin is None:
            return
        # A process that was forked may hold the other end of the pipe: closing it is not enough.
        with contextlib.suppress(OSError):
            process.stdin.write(b"%d\n" % _END)
            process.stdin.close()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
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
    for number in _numbers(int(sys.argv[1])):
        if number == _END:
            break
        groups.add(number) if number > 0 else groups.discard(-number)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _numbers(parent: int) -> Iterator[int]:
    """Yields the numbers of the input, as long as it is open and the parent process lives."""
    os.set_blocking(0, False)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    # Where the kernel has no such descriptors, the end of the input alone must do.
    with contextlib.suppress(OSError, AttributeError):
        poll.register(os.pidfd_open(parent), select.POLLIN)
    rest, lives = b"", os.getppid() == parent
    while True:
        if lives:
            poll.poll()
            lives = os.getppid() == parent  # Asked before the last numbers are read.
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(0, 1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from map(int, lines)
            return
        if not lives:
            return


if __name__ == "__main__":
    main()
