"""Orders all calls of a replicator's steps, both direct calls and those in the background."""

import collections
import contextlib
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

from rl_replicator import errors

# One running call and one that is ready to run: more would only delay the outputs.
_CAPACITY = 2
# Long enough for a step to notice its cancellation, or to finish.
_EXIT_SECONDS = 10.0
# A longer wait for another thread's step is logged.
_NOTICE_SECONDS = 30.0

_LOG = logging.getLogger(__name__)


class CallOrder:
    """Runs calls one at a time, in the order in which they were made.

    Two concurrent calls would read the same variables, and one of the two updates would be lost.
    """

    def __init__(self) -> None:
        self._tickets: collections.deque[object] = collections.deque()
        self._changed = threading.Condition()
        self._owner: int | None = None
        self._background: _Background | None = None

    @contextlib.contextmanager
    def turn(self, waiting: str = "") -> Iterator[None]:
        """Waits for all earlier calls, and makes later ones wait. Re-entrant.

        Args:
          waiting: text to log after a long wait.
        """
        if self._owner == threading.get_ident():
            yield
            return
        with self._turn_of(self._draw(), waiting):
            yield

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context without calls in the background; waits for those that began earlier. Re-entrant.

        If no call was ever made in the background, it does not wait for the direct calls of other
        threads: these may wait for data, and code that is independent of the steps, such as a
        counter's checkpoint, must not wait with them. Code that must not run during a step uses
        `turn`.
        """
        with contextlib.nullcontext() if self._background is None else self.turn():
            yield

    def begin(
        self, function: Callable[[], Any], cancel: Callable[[], None]
    ) -> "futures.Future[Any]":
        """Runs `function()` in the background; blocks while two such calls have not ended.

        Args:
          function: called when its turn comes.
          cancel: makes `function` end early; called if the program exits while it runs.

        Returns:
          A future of the result or exception of `function`.

        Raises:
          ConfigError: if called inside the `function` of another such call, where a wait for the
            future would never end.
        """
        if self._background is not None and self._background.is_in_function():
            raise errors.ConfigError(
                "expected direct calls of steps in a function of begin, got another begin, which "
                "would wait for that function to end; call the step itself"
            )
        with self._changed:
            if self._background is None:
                self._background = _Background()
                weakref.finalize(self, self._background.stop)
            background = self._background
        background.free.acquire()
        with self._changed:  # The thread must receive its calls in the order of their tickets.
            ticket = self._draw()
            return background.submit(function, cancel, lambda: self._turn_of(ticket))

    def _draw(self) -> object:
        ticket = object()
        with self._changed:
            self._tickets.append(ticket)
        return ticket

    @contextlib.contextmanager
    def _turn_of(self, ticket: object, waiting: str = "") -> Iterator[None]:
        def is_next() -> bool:
            return self._tickets[0] is ticket

        try:
            with self._changed:
                if waiting and not self._changed.wait_for(is_next, _NOTICE_SECONDS):
                    _LOG.warning("%s", waiting)
                self._changed.wait_for(is_next)
                self._owner = threading.get_ident()
            yield
        finally:  # Also if Ctrl-C interrupts the wait.
            with self._changed:
                if self._tickets[0] is ticket:
                    self._owner = None
                self._tickets.remove(ticket)
                self._changed.notify_all()


class _Background:
    """A daemon thread for the calls of one `CallOrder`.

    It is a daemon because a call may wait for data that never arrives: a thread of an executor
    would prevent the interpreter from exiting.
    """

    def __init__(self) -> None:
        self.free = threading.Semaphore(_CAPACITY)
        self._tasks: queue.SimpleQueue[tuple | None] = queue.SimpleQueue()
        self._is_stopped = False
        self._is_calling = False
        self._cancel: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._work, name="replicated-step", daemon=True)
        self._thread.start()

    def is_in_function(self) -> bool:
        """Whether the caller is a call's function; callbacks of its future do not count."""
        return self._is_calling and threading.current_thread() is self._thread

    def submit(
        self,
        function: Callable[[], Any],
        cancel: Callable[[], None],
        turn: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> "futures.Future[Any]":
        """Runs `function()` within `turn()`. `free` must have been acquired."""
        future: futures.Future[Any] = futures.Future()
        future.add_done_callback(lambda _: self.free.release())
        self._tasks.put((future, function, cancel, turn))
        return future

    def stop(self) -> None:
        """Ends the thread: cancels the running call, and drops the waiting ones.

        The thread must not be inside TensorFlow while the interpreter is finalized.
        """
        self._is_stopped = True
        self._tasks.put(None)
        cancel = self._cancel
        if cancel is not None and self._thread is not threading.current_thread():
            cancel()
            self._thread.join(_EXIT_SECONDS)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            self._run(*task)
            del task  # Otherwise its step and variables would stay alive until the next call.

    def _run(
        self,
        future: "futures.Future[Any]",
        function: Callable[[], Any],
        cancel: Callable[[], None],
        turn: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._cancel = cancel
        with turn():
            if self._is_stopped:
                future.cancel()
            if future.set_running_or_notify_cancel():
                self._is_calling = True
                try:
                    result = function()
                except BaseException as error:
                    self._is_calling = False
                    future.set_exception(error)
                else:
                    self._is_calling = False
                    future.set_result(result)
        self._cancel = None
