"""Background work that may change variables after the call that started it has returned.

Steps of parameter servers run ahead of their caller. Code that needs variables to stand still, such
as a checkpoint, calls `wait` and does not have to know which replicator is in use.
"""

import weakref
from typing import Protocol


class BackgroundWorker(Protocol):
    """Runs work in the background."""

    def synchronize(self) -> None:
        """Returns when all work that was started has ended; starts none."""


_REGISTERED: "weakref.WeakSet[BackgroundWorker]" = weakref.WeakSet()


def register(worker: BackgroundWorker) -> None:
    """Makes `wait` call `worker.synchronize()` for as long as `worker` is alive."""
    _REGISTERED.add(worker)


def wait() -> None:
    """Waits until nothing changes variables in the background.

    Raises:
      Exception: whatever the background work raised.
    """
    for worker in tuple(_REGISTERED):
        worker.synchronize()
