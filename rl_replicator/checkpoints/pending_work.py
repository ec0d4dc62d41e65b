"""Background work that may change variables after the call that started it has returned.

Steps on parameter servers run ahead of their caller. Code that needs unchanging variables, such as
a checkpoint, calls `wait` and need not know which replicator is in use.
"""

import weakref
from typing import Protocol


class BackgroundWorker(Protocol):
    """Runs work in the background."""

    def synchronize(self) -> None:
        """Waits until all work that was started has ended."""


_REGISTERED: "weakref.WeakSet[BackgroundWorker]" = weakref.WeakSet()


def register(worker: BackgroundWorker) -> None:
    """Makes `wait` call `worker.synchronize()` as long as `worker` is referenced elsewhere."""
    _REGISTERED.add(worker)


def wait() -> None:
    """Waits until no background work changes variables.

    Raises:
      Exception: if background work raised it.
    """
    for worker in tuple(_REGISTERED):
        worker.synchronize()
