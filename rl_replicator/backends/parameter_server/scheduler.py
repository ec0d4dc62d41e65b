"""Calls of compiled functions on the workers of a cluster, begun ahead of whoever wants them."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator.backends.parameter_server import staleness, watch

_PATIENCE = 0.2


class Scheduler:
    """Hands calls to the workers, as far as the bound on staleness admits.

    Everything that is said here, and by those whose calls it runs, is said with `news` held; it is
    notified when a call has ended. Whoever waits does so in `wait`, where the loss of a process is
    noticed.
    """

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        bound: staleness.Bound,
        tasks: watch.Watch,
        num_threads: int,
    ):
        """Begins nothing.

        Args:
          coordinator: runs each call on whichever worker is free; again on another if that dies.
          bound: which calls may be open at a time.
          tasks: knows who is lost.
          num_threads: the most that `bound` ever admits at a time.
        """
        self.news = threading.Condition()
        self._coordinator = coordinator
        self._bound = bound
        self._tasks = tasks
        self._failure: Exception | None = None
        self._is_halted = False
        self._waiting: queue.SimpleQueue[tuple] = queue.SimpleQueue()
        for _ in range(num_threads):
            threading.Thread(target=self._work, name="worker-call", daemon=True).start()

    @property
    def given_up(self) -> set[int]:
        """Workers that have been gone for so long that nobody waits for them."""
        return self._tasks.given_up

    @property
    def is_serial(self) -> bool:
        """Whether no step may be stale, so that nothing is to run ahead of its caller."""
        return self._bound.is_serial

    def check(self) -> None:
        """Raises `WorkerLost`, for good, once the cluster cannot go on."""
        if self._failure is not None:
            raise self._failure

    def admits(self, updates: int) -> bool:
        """Whether a call of so many steps may begin now."""
        return not self._is_halted and self._bound.admits(updates)

    def begin(
        self,
        function: tf.types.experimental.ConcreteFunction,
        arguments: Sequence[Any],
        updates: int,
        on_end: Callable[[Any, Exception | None], None],
    ) -> None:
        """Begins a call, which `admits` has allowed.

        Args:
          function: returns tensors.
          arguments: per-worker values.
          updates: how many steps it takes.
          on_end: called in some thread, with `news` held, with the results or the error; with
            neither for a call that was dropped because of another's error.
        """
        key = object()
        self._bound.open(key, updates)
        self._waiting.put((key, function, arguments, on_end))

    def wait(self) -> None:
        """With `news` held: waits for a moment, or until there is news.

        Raises:
          WorkerLost: it is no use to wait any longer.
        """
        self.check()
        self.news.wait(_PATIENCE)
        self.news.release()  # The check may take seconds.
        try:
            loss = self._tasks.check()
        finally:
            self.news.acquire()
        if loss is not None and self._failure is None:
            self._failure = loss
        self.check()

    def drain(self) -> None:
        """Returns when no call is open."""
        with self.news:
            while self._bound.num_open:
                self.wait()

    def _work(self) -> None:
        while True:
            key, function, arguments, on_end = self._waiting.get()
            results, error = self._run(function, arguments)
            loss = None if error is None else self._tasks.blame(error)
            self._tasks.heard()
            with self.news:
                self._bound.close(key)
                if loss is not None:
                    self._failure = self._failure or loss
                on_end(results, error)
                if self._is_halted and not self._bound.num_open:
                    self._clear()
                self.news.notify_all()

    def _run(self, function: Any, arguments: Sequence[Any]) -> tuple[Any, Exception | None]:
        if self._is_halted:
            return None, None
        try:
            remote = self._coordinator.schedule(function, args=tuple(arguments))
        except Exception:
            # The error of an earlier call, whose own thread reports it; this one was dropped.
            self._is_halted = True
            return None, None
        results, error = _fetch(remote)
        # The coordinator keeps the error of a call, and would cancel all others when it is given
        # the next: in the middle of their steps. So it is given none until these have ended.
        self._is_halted |= error is not None
        return results, None if isinstance(error, tf.errors.CancelledError) else error

    def _clear(self) -> None:
        """Has the coordinator forget the errors of calls that have all ended."""
        with contextlib.suppress(Exception):
            self._coordinator.join()
        self._is_halted = False


def _fetch(remote: Any) -> tuple[Any, Exception | None]:
    """Waits for the results of a call, or its error."""
    seen: Exception | None = None
    while True:
        try:
            return remote.get(), None
        except Exception as error:
            if error is seen:
                return None, error
            # A worker that dies between the call and the fetching of its results makes a new error
            # each time, until the coordinator has had the call done again; an error of the call
            # itself stays the same.
            if seen is not None:
                time.sleep(_PATIENCE)
            seen = error
