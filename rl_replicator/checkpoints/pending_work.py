"""Background work that may change variables after the call that started it has returned.

Steps may run in the background, and those on parameter servers run ahead of their caller. Code that
needs unchanging variables, such as a checkpoint, runs in `paused()` and need not know which
replicators are in use.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Protocol


class BackgroundWorker(Protocol):
    """Runs work in the background."""

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Waits until all work that was started has ended; none begins in the context."""


_REGISTERED: "weakref.WeakSet[BackgroundWorker]" = weakref.WeakSet()


def register(worker: BackgroundWorker) -> None:
    """Makes `paused` enter `worker.paused()` as long as `worker` is referenced elsewhere."""
    _REGISTERED.add(worker)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Context in which no background work changes variables; waits for what was started.

    Raises:
      Exception: if background work raised it.
    """
    with contextlib.ExitStack() as stack:
        for worker in tuple(_REGISTERED):
            stack.enter_context(worker.paused())
        yield
