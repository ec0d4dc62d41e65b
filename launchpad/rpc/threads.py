"""An executor whose threads never keep the interpreter alive."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any


class DaemonExecutor(futures.Executor):
    """A thread pool of daemon threads, started as they are needed.

    The standard pool joins its threads at interpreter exit, so one handler that waits for ever
    would keep a finished program alive; and it refuses work once the exit has begun, when a program
    that is awaited at exit still needs it.
    """

    def __init__(self, max_workers: int, name: str):
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._max_workers = max_workers
        self._name = name
        self._idle = threading.Semaphore(0)
        self._num_threads = 0
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        self._tasks.put((future, fn, args, kwargs))
        if not self._idle.acquire(blocking=False):
            with self._lock:
                if self._num_threads < self._max_workers:
                    self._num_threads += 1
                    name = f"{self._name}-{self._num_threads}"
                    threading.Thread(target=self._work, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Lets idle threads end; never waits for busy ones."""
        with self._lock:
            for _ in range(self._num_threads):
                self._tasks.put(None)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            future, fn, args, kwargs = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:  # The future carries it to the waiter.
                    future.set_exception(error)
            del task, future, fn, args, kwargs  # Don't keep arguments alive while idle.
            self._idle.release()
