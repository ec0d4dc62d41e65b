"""Temporary handlers for the signals that ask a process to end.

A signal that is ignored when the process starts stays ignored, as intended by its parent: `nohup`
ignores SIGHUP, and `&` in a script ignores SIGINT, which keeps Ctrl-C for the foreground.

A process that is forked from this one inherits the handlers, but neither the threads nor the loop
that they need. So its previous handlers are restored, and it ends when it is asked to.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

# The signals that ask a process to end: from Ctrl-C, `kill`, and the closing of its terminal.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Environment variable of a process whose parent asks it to end, and kills it if it takes too long.
SUPERVISED = "RL_REPLICATOR_SUPERVISED"

# Signals that follow one another faster are one request: GNU `timeout` signals its command, and
# then the whole group, to which the command belongs.
_ONE_REQUEST_SECS = 0.5
# When the last signal was noted.
_noted_at = 0.0

# The signals handled here, with their handler in this process and in forks; the newest last.
_taken: list[tuple[int, Handler, Any]] = []


def note(number: int, received: list[int]) -> bool:
    """Adds a signal to those received, unless it belongs to the request that was received before.

    A second request means that the process must end immediately. A second SIGHUP is none, because
    both the kernel and the shell send it. Nor is any signal to a supervised process: a signal to
    all processes of a job reaches it twice, directly and through its parent, and the parent kills
    it if it must end immediately.

    Args:
      number: the signal.
      received: signals received before.

    Returns:
      Whether it was added.
    """
    global _noted_at
    now = time.monotonic()
    is_one = number == signal.SIGHUP or SUPERVISED in os.environ
    if received and (is_one or now - _noted_at < _ONE_REQUEST_SECS):
        return False
    _noted_at = now
    received.append(number)
    return True


def take(handler: Handler, numbers: Iterable[int] = ENDING) -> dict[int, Any]:
    """Installs a handler for signals; those that are ignored stay ignored.

    Does nothing outside the main thread, the only one in which Python handles signals.

    Args:
      handler: called with the number of the signal and the frame that it interrupts.
      numbers: the signals.

    Returns:
      The previous handler of each signal whose handler this changes.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {
        number: _set(number, handler, former)
        for number in numbers
        if (former := signal.getsignal(number)) not in (signal.SIG_IGN, handler)
    }


def override(number: int, handler: Handler) -> None:
    """Installs a handler permanently, even if the signal is ignored. Main thread only.

    In processes that are forked from this one, the signal has the default handler of a new
    interpreter.

    Args:
      number: the signal.
      handler: called with its number and the frame that it interrupts.
    """
    is_interrupt = number == signal.SIGINT
    _set(number, handler, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def _set(number: int, handler: Handler, in_forks: Any) -> Any:
    # Recorded first, because another thread may fork at any time.
    _taken.append((number, handler, in_forks))
    return signal.signal(number, handler)


def give_back(handler: Handler, before: dict[int, Any]) -> None:
    """Undoes `take`, except for signals that have got another handler since.

    Args:
      handler: the handler passed to `take`.
      before: the result of `take`; emptied.
    """
    while before:
        number, former = before.popitem()
        _restore(number, handler, former)
        newest = next((one for one in reversed(_taken) if one[:2] == (number, handler)), None)
        if newest is not None:
            with contextlib.suppress(ValueError):  # A handler that ran meanwhile has removed it.
                _taken.remove(newest)


def _restore(number: int, handler: Handler, former: Any) -> None:
    if signal.getsignal(number) == handler:
        # None stands for a handler that was not set by Python, and that Python cannot restore.
        signal.signal(number, signal.SIG_DFL if former is None else former)


@contextlib.contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Inside the context, handles the signals that ask a process to end; see `take`."""
    before = take(handler)
    try:
        yield
    finally:
        give_back(handler, before)


def _give_all_back() -> None:
    while _taken:
        _restore(*_taken.pop())


os.register_at_fork(after_in_child=_give_all_back)
