"""What the signals that ask a process to end do for a while.

A signal that a process ignores when it starts stays ignored, as whoever has started it wants:
`nohup` for SIGHUP, and for SIGINT a script's `&`, which keeps Ctrl-C for the foreground.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

# What asks a process to end: Ctrl-C, `kill`, and the end of its terminal.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def note(number: int, received: list[int]) -> bool:
    """Adds a signal to those received, unless it only repeats that the terminal has ended.

    The kernel sends SIGHUP, and then the shell does. That must not count as impatience.

    Args:
      number: the signal.
      received: signals received before.

    Returns:
      Whether it was added.
    """
    if received and number == signal.SIGHUP:
        return False
    received.append(number)
    return True


def take(handler: Handler, numbers: Iterable[int] = ENDING) -> dict[int, Any]:
    """Handles signals from now on; those that are ignored stay so.

    Does nothing in other threads than the main one, which alone handles signals.

    Args:
      handler: called with the number of the signal and the frame that it interrupts.
      numbers: the signals.

    Returns:
      What has handled each of them before; those that this changes nothing for are left out.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {
        number: signal.signal(number, handler)
        for number in numbers
        if signal.getsignal(number) not in (signal.SIG_IGN, handler)
    }


def give_back(handler: Handler, before: dict[int, Any]) -> None:
    """Undoes `take`, except where somebody has put another handler over this one.

    Args:
      handler: what handles the signals now.
      before: what `take` has returned; empty afterwards.
    """
    while before:
        number, former = before.popitem()
        if signal.getsignal(number) == handler:
            # None is a handler that is not of Python, which cannot be set again.
            signal.signal(number, signal.SIG_DFL if former is None else former)


@contextlib.contextmanager
def handled(handler: Handler, numbers: Iterable[int] = ENDING) -> Iterator[None]:
    """Handles signals inside the context, as `take` does.

    Args:
      handler: see `take`.
      numbers: see `take`.
    """
    before = take(handler, numbers)
    try:
        yield
    finally:
        give_back(handler, before)
