"""Work that may change variables while other code runs.

Steps may run in the background or in other threads, and those on parameter servers run ahead of
their caller. Code that needs unchanging variables, such as a checkpoint, runs in `paused()` and
need not know which replicators are in use.
"""

import contextlib
import threading
import weakref
from collections.abc import Collection, Iterator
from typing import Any, Protocol


class BackgroundWorker(Protocol):
    """Runs work in the background."""

    def paused(self, variables: Collection[Any] = ()) -> contextlib.AbstractContextManager[None]:
        """Waits until all work that was started has ended; no work begins in the context.

        Args:
          variables: see `pending_work.paused`.
        """


_LOCK = threading.Lock()
# Ordered, so that two threads that pause all workers do not deadlock. They would still deadlock if
# they were doing background work themselves; see `Replicator.begin`.
_REGISTERED: "list[weakref.ref[BackgroundWorker]]" = []


def register(worker: BackgroundWorker) -> None:
    """Makes `paused` enter `worker.paused()` as long as `worker` is referenced elsewhere."""
    with _LOCK:
        _REGISTERED[:] = [each for each in _REGISTERED if each() is not None]
        _REGISTERED.append(weakref.ref(worker))


@contextlib.contextmanager
def paused(variables: Collection[Any] = ()) -> Iterator[None]:
    """Context in which no background work changes variables; first waits for work in progress.

    Args:
      variables: variables that nothing else may change either: also waits for the steps that other
        threads take on the replicators of these variables. It does not wait for other threads on
        other replicators, because their steps may wait for data.

    Raises:
      Exception: if background work raised it.
    """
    with _LOCK:
        workers = [worker for each in _REGISTERED if (worker := each()) is not None]
    with contextlib.ExitStack() as stack:
        for worker in workers:
            stack.enter_context(worker.paused(variables))
        yield
