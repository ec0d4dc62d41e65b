"""What the signals that ask a process to end do for a while.

A signal that a process ignores when it starts stays ignored, as whoever has started it wants:
`nohup` for SIGHUP, and for SIGINT a script's `&`, which keeps Ctrl-C for the foreground.

A process that is forked from this one inherits handlers, but neither the threads nor the loop that
they need. It gets the handlers back that were there before, and ends when it is asked to.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

# What asks a process to end: Ctrl-C, `kill`, and the end of its terminal.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# In the environment of a process whose parent asks it to end, and kills it if it does not in time.
SUPERVISED = "RL_REPLICATOR_SUPERVISED"

# Signals that are handled here, with what handles them in forked processes; the newest last.
_taken: list[tuple[int, Handler, Any]] = []
# What forked processes do first.
_in_forks: list[Callable[[], None]] = []


def is_impatience(number: int) -> bool:
    """Returns whether a signal, after another one, asks to end at once.

    SIGHUP does not: the kernel sends it, and then the shell does. Nor does any signal to a process
    that is supervised: what signals all processes of a job reaches it twice, directly and through
    its parent, which kills it if somebody is impatient.

    Args:
      number: the second signal.
    """
    return number != signal.SIGHUP and SUPERVISED not in os.environ


def note(number: int, received: list[int]) -> bool:
    """Adds a signal to those received, unless it only repeats the first: see `is_impatience`.

    Args:
      number: the signal.
      received: signals received before.

    Returns:
      Whether it was added.
    """
    if received and not is_impatience(number):
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
        number: _set(number, handler, former)
        for number in numbers
        if (former := signal.getsignal(number)) not in (signal.SIG_IGN, handler)
    }


def override(number: int, handler: Handler) -> None:
    """Handles a signal for good, even if it is ignored. For the main thread.

    Processes that are forked from this one handle it as a new interpreter does.

    Args:
      number: the signal.
      handler: called with its number and the frame that it interrupts.
    """
    is_interrupt = number == signal.SIGINT
    _set(number, handler, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def call_in_forks(function: Callable[[], None]) -> None:
    """Calls a function in each process that is forked from this one, before any signal reaches it.

    Args:
      function: forgets what only this process has, for handlers that others have kept.
    """
    _in_forks.append(function)


def _set(number: int, handler: Handler, in_forks: Any) -> Any:
    # Noted first, because another thread may fork at any time.
    _taken.append((number, handler, in_forks))
    return signal.signal(number, handler)


def give_back(handler: Handler, before: dict[int, Any]) -> None:
    """Undoes `take`, except where somebody has put another handler over this one.

    Args:
      handler: what handles the signals now.
      before: what `take` has returned; empty afterwards.
    """
    while before:
        number, former = before.popitem()
        _restore(number, handler, former)
        newest = next((one for one in reversed(_taken) if one[:2] == (number, handler)), None)
        if newest is not None:
            with contextlib.suppress(ValueError):  # A handler that interrupts this was first.
                _taken.remove(newest)


def _restore(number: int, handler: Handler, former: Any) -> None:
    if signal.getsignal(number) == handler:
        # None is a handler that is not of Python, which cannot be set again.
        signal.signal(number, signal.SIG_DFL if former is None else former)


@contextlib.contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Handles the signals that end a process inside the context, as `take` does."""
    before = take(handler)
    try:
        yield
    finally:
        give_back(handler, before)


class _Fork(threading.local):
    """A fork by this thread.

    Attributes:
      held: Signals that it holds back.
    """

    held: frozenset[int] = frozenset()


_fork = _Fork()


def _hold() -> None:
    """Holds signals back, because Python drops those that a new process gets before our hook."""
    numbers = frozenset(number for number, _, _ in _taken)
    if numbers:
        numbers -= signal.pthread_sigmask(signal.SIG_BLOCK, ())
    _fork.held = numbers
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _fork.held)


def _give_all_back() -> None:
    for function in _in_forks:
        function()
    while _taken:
        _restore(*_taken.pop())


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_give_all_back)
# A second time in the parent, where an exception that a handler raises may take the place of a
# call. In the child, held signals are for the handlers that it has got back.
os.register_at_fork(after_in_parent=_let_go, after_in_child=_let_go)
