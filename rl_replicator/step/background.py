"""Calls that run one after the other behind Python's back."""

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

# One that runs and one that is ready to: more would only make what the caller sees older.
_CAPACITY = 2


class Background:
    """One thread, which begins calls in the order in which they were submitted."""

    def __init__(self) -> None:
        self._executor = futures.ThreadPoolExecutor(1, "replicated-step")
        self._free = threading.Semaphore(_CAPACITY)

    def submit(self, function: Callable[[], Any]) -> "futures.Future[Any]":
        """Runs `function()` after all that were submitted before; blocks while two wait."""
        self._free.acquire()
        future = self._executor.submit(function)
        future.add_done_callback(lambda _: self._free.release())
        return future
