"""An executor whose threads never keep the interpreter alive."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any


class DaemonExecutor(futures.Executor):
    """A thread pool of daemon threads, started as they are needed.

    The standard pool joins its threads at interpreter exit, so one handler that waits forever would
    keep a finished program alive; and it refuses work once the exit has begun, when a program that
    is awaited at exit still needs it.
    """

    def __init__(self, max_workers: int, name: str):
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._max_workers = max_workers
        self._name = name
        # One entry per idle thread. It is cheaper than a semaphore, which is Python code.
        self._idle: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._num_threads = 0
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Runs `fn` in a thread of the pool; returns the future of its result."""
        future: futures.Future[Any] = futures.Future()
        self._tasks.put((future, fn, args, kwargs))
        try:
            self._idle.get_nowait()
        except queue.Empty:
            self._start_thread()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Lets idle threads end; never waits for busy ones."""
        with self._lock:
            for _ in range(self._num_threads):
                self._tasks.put(None)

    def _start_thread(self) -> None:
        with self._lock:
            if self._num_threads < self._max_workers:
                self._num_threads += 1
                name = f"{self._name}-{self._num_threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            _run(*task)
            del task  # Don't keep arguments alive while idle.
            self._idle.put(None)


def _run(
    future: futures.Future[Any],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # The future carries it to the waiter.
            future.set_exception(error)
