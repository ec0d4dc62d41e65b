"""Kills the process groups that a dead process leaves behind: `python guard.py`.

When a process dies, in whatever way, the kernel also kills the leaders of the process groups that
it has started, but not the processes that these leaders have started. The guard reads the ids of
the groups from its standard input, one per line; a negated id means that the group has ended. It
kills the remaining groups when it reads 0, when the input ends, or when the process that started it
has ended: forks of that process may keep the input open. It uses only the standard library, to stay
small.
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
# A guard that has not ended by then was stopped by a signal, or gets no CPU time.
_SECONDS_TO_END = 60.0


class Guard:
    """A process that briefly outlives this one, to kill its process groups. Thread-safe."""

    def __init__(self) -> None:
        """Starts no process yet: the first call of `watch` does."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def watch(self, group: int) -> None:
        """Makes the guard kill a process group if this process dies.

        Args:
          group: id of the group.
        """
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__, str(os.getpid())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C in the terminal must not end it.
                )
        self._write(group)

    def forget(self, group: int) -> None:
        """Makes the guard ignore a group, all of whose processes have ended.

        Args:
          group: id of the group.
        """
        self._write(-group)

    def close(self) -> None:
        """Ends the guard, which kills the groups it watches; the next `watch` starts another."""
        with self._lock:
            process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        # Closing the pipe is not enough, because a fork of this process may keep it open.
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
                with contextlib.suppress(OSError, ValueError):  # The guard was killed, or closed.
                    self._process.stdin.write(b"%d\n" % number)
                    self._process.stdin.flush()


def main() -> None:
    """Waits until the parent process ends or closes the guard; kills the remaining groups."""
    groups: set[int] = set()
    for number in _numbers(int(sys.argv[1])):
        if number == _END:
            break
        groups.add(number) if number > 0 else groups.discard(-number)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _numbers(parent: int) -> Iterator[int]:
    """Yields the numbers from the input while it is open and the parent process is alive."""
    os.set_blocking(0, False)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    # Kernels without process descriptors signal only the end of the input.
    with contextlib.suppress(OSError, AttributeError):
        poll.register(os.pidfd_open(parent), select.POLLIN)
    rest, lives = b"", os.getppid() == parent
    while True:
        if lives:
            poll.poll()
            lives = os.getppid() == parent  # Checked before the last numbers are read.
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(0, 1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from map(int, lines)
            return
        if not lives:
            return


if __name__ == "__main__":
    main()
