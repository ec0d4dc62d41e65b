"""The output of processes, and descriptions of how they ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import IO

# Takes a target, "stdout" or "stderr", and a line including its newline.
Writer = Callable[[str, str], None]

# Minimum time, in seconds, between two copies of a progress bar, which a process overwrites with
# "\r". Its final state is always copied.
_BAR_SECS = 5.0
# Longer lines are split.
_LINE_BYTES = 1 << 20

_lock = threading.Lock()


def prefixed(prefix: str) -> Writer:
    """Returns a writer to the output of this process.

    Args:
      prefix: text before every line.
    """

    def write(target: str, text: str) -> None:
        # Looked up for every line, because a notebook or a test may replace the stream.
        out = getattr(sys, target)
        if out is None:  # The stream was already closed when this process started.
            return
        encoding = getattr(out, "encoding", None) or "utf-8"
        out.write(f"{prefix}{text}".encode(encoding, "replace").decode(encoding))
        if (flush := getattr(out, "flush", None)) is not None:  # `print` works without it, too.
            flush()

    return write


class LineCopier:
    """Copies the output of a process line by line, in the background.

    Text that the process overwrites with "\\r", such as a progress bar, is copied as a line every
    few seconds and in its final state. Other text is copied when its line has ended.
    """

    def __init__(self, write: Writer, streams: Mapping[str, IO[bytes]]):
        """Starts copying.

        Args:
          write: called with one line at a time.
          streams: pipes from the process by their target, "stdout" or "stderr".
        """
        self._copies = [_Copy(write, target, stream) for target, stream in streams.items()]

    def drain(self, timeout: float) -> None:
        """Waits until all output of a process that has ended is copied.

        An orphan that inherited the pipes may keep them open; this does not wait for its output.

        Args:
          timeout: seconds to wait.
        """
        deadline = time.monotonic() + timeout
        for one in self._copies:
            one.drain(deadline)


class _Copy:
    """Copies the lines of one pipe, in a thread of its own."""

    def __init__(self, write: Writer, target: str, stream: IO[bytes]):
        self._write, self._target, self._stream = write, target, stream
        self._num_bytes = 0
        self._next_bar = 0.0
        self._has_failed = False
        # Held from each read until the lines are written.
        self._busy = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"copy {target}", daemon=True)
        self._thread.start()

    def drain(self, deadline: float) -> None:
        """Waits until all that is in the pipe now is copied, at most until `deadline`.

        Args:
          deadline: a time of `time.monotonic`.
        """
        goal: int | None = None
        while self._thread.is_alive() and (left := deadline - time.monotonic()) > 0:
            if self._busy.acquire(timeout=left):
                try:
                    if self._stream.closed:
                        return
                    if goal is None:
                        goal = self._num_bytes + _num_waiting(self._stream)
                    # At the end of the pipe, a last line without a newline has yet to be copied.
                    if self._num_bytes >= goal and not _has_ended(self._stream):
                        return
                finally:
                    self._busy.release()
            self._thread.join(0.01)

    def _run(self) -> None:
        rest = bytearray()
        while not self._stream.closed:
            _wait(self._stream)
            with self._busy:
                chunk = os.read(self._stream.fileno(), 1 << 16)
                self._num_bytes += len(chunk)
                if not chunk:
                    self._stream.close()
                    chunk = b"\n" if rest else b""  # The last line may lack a newline.
                rest += chunk
                if b"\n" in chunk:
                    *lines, rest = rest.split(b"\n")
                    self._write_lines(map(_visible, lines))
                if b"\r" in chunk:
                    rest = self._copy_bar(rest)
                if len(rest) > _LINE_BYTES:
                    self._write_lines([_visible(rest)])
                    rest = bytearray()

    def _copy_bar(self, rest: bytearray) -> bytearray:
        """Writes the latest complete state of a progress bar if it is due; returns what remains."""
        end = rest.rfind(b"\r", 0, -1)  # A "\r" at the very end may belong to "\r\n".
        if end < 0:
            return rest
        state, rest = _visible(rest[:end]), rest[end + 1 :]
        now = time.monotonic()
        if now < self._next_bar or not state.strip():
            return state + b"\r" + rest
        self._next_bar = now + _BAR_SECS
        self._write_lines([state])
        return rest

    def _write_lines(self, lines: Iterable[bytearray]) -> None:
        for line in lines:
            # Copying continues after errors: if the reader of our output is gone, or a script's own
            # stream fails, the process must not block on a full pipe.
            try:
                with _lock:
                    self._write(self._target, f"{line.decode(errors='replace')}\n")
            except (OSError, ValueError):
                pass
            except Exception as error:
                self._tell_failure(error)

    def _tell_failure(self, error: Exception) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        with contextlib.suppress(Exception):
            print(
                f"what a process has printed can't be written to sys.{self._target}: "
                f"{type(error).__name__}: {error}; give it a write() that takes text",
                file=sys.__stderr__,
            )


def _visible(line: bytearray) -> bytearray:
    """Returns the visible text of a line: text after a "\\r" overwrites the text before it."""
    states = line.split(b"\r")
    return next((state for state in reversed(states) if state.strip()), states[0])


def _wait(pipe: IO[bytes]) -> None:
    """Waits until a pipe has data or has ended."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.poll()


def _has_ended(pipe: IO[bytes]) -> bool:
    """Whether no process can write to a pipe anymore."""
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def _num_waiting(pipe: IO[bytes]) -> int:
    """Returns the number of unread bytes in a pipe."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    return count


def describe_end(code: int) -> str:
    """Describes the end of a process, such as "was killed by SIGKILL".

    Args:
      code: exit status, or the negative number of the signal that killed it.
    """
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # A real-time signal.
        return f"was killed by signal {-code}"
