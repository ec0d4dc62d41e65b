"""Schedules calls of compiled functions on workers, ahead of the caller that needs the results."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator.backends.parameter_server import watch

_PATIENCE = 0.2


class Bound:
    """Decides whether another call may begin.

    An update of one call can come between the read and the update of another call's step only if
    both calls are open at the same time, as seen by the coordinator. So it suffices to count, for
    every open call, the steps of all calls that have been open at the same time.

    Attributes:
      most_open: greatest number of calls that may be open at the same time.
    """

    def __init__(self, max_staleness: int | None, num_workers: int):
        """Starts without open calls.

        Args:
          max_staleness: the bound; None to limit only the number of open calls.
          num_workers: number of workers, each of which has one running and one queued call.
        """
        self._max = max_staleness
        self.most_open = 2 * num_workers
        self._begun = 0  # Number of steps of all calls so far.
        self._ended = 0  # Number of steps of all calls that have ended.
        self._limits: list[int] = []  # For every open call, the most that `_begun` may become.

    @property
    def num_open(self) -> int:
        """Number of open calls."""
        return len(self._limits)

    @property
    def is_serial(self) -> bool:
        """Whether no step may be stale at all."""
        return self._max == 0

    def admits(self, updates: int) -> bool:
        """Returns whether a call of a number of steps may begin now."""
        if self.num_open >= self.most_open:
            return False
        if self._max is None or not self._limits:
            return True
        has_met = self._begun - self._ended
        return has_met <= self._max and self._begun + updates <= min(self._limits)

    def open(self, updates: int) -> int:
        """Records the beginning of a call, which `admits` has allowed.

        Args:
          updates: number of steps of the call.

        Returns:
          A number to pass to `close`.
        """
        # The call meets those that are open now, and all that begin until it ends.
        limit = self._ended + updates + (self._max or 0)
        self._limits.append(limit)
        self._begun += updates
        return limit

    def close(self, limit: int, updates: int) -> None:
        """Records the end of a call.

        Args:
          limit: return value of `open`.
          updates: number of steps of the call.
        """
        self._limits.remove(limit)
        self._ended += updates


class CallScheduler:
    """Schedules calls on the workers, as far as the bound on staleness allows.

    Hold the lock of `news` when calling any method except `drain`; callbacks run with the lock
    held. `news` is notified when a call ends. Callers wait in `wait`, which also detects lost
    processes.

    Attributes:
      news: condition that guards the state of the scheduler and of its callers.
    """

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        bound: Bound,
        tasks: watch.Watch,
    ):
        """Begins no call yet.

        Args:
          coordinator: runs each call on any idle worker; repeats it on another one if that dies.
          bound: limits the calls that are open at the same time.
          tasks: detects lost processes.
        """
        self.news = threading.Condition()
        self._coordinator = coordinator
        self._bound = bound
        self._tasks = tasks
        self._failure: Exception | None = None
        self._is_halted = False
        self._waiting: queue.SimpleQueue[tuple] = queue.SimpleQueue()
        for _ in range(bound.most_open):
            threading.Thread(target=self._work, name="worker-call", daemon=True).start()

    @property
    def is_serial(self) -> bool:
        """Whether no step may be stale, so that no call may run ahead of its caller."""
        return self._bound.is_serial

    def check(self) -> None:
        """Raises `WorkerLost` if the cluster has failed; it never recovers."""
        if self._failure is not None:
            raise self._failure

    def admits(self, updates: int) -> bool:
        """Returns whether a call may begin now.

        Args:
          updates: number of steps of the call.
        """
        return not self._is_halted and self._bound.admits(updates)

    def begin(
        self,
        function: tf.types.experimental.ConcreteFunction,
        arguments: Sequence[Any],
        updates: int,
        on_end: Callable[[Any, Exception | None], bool],
    ) -> None:
        """Begins a call, which `admits` has allowed.

        Args:
          function: function that returns tensors.
          arguments: its arguments, which are per-worker values.
          updates: number of steps that it takes.
          on_end: called in another thread, with the lock of `news` held: with the results, or with
            an error, or with neither if the call was dropped because of another call's error.
            Returns whether the call took a step or failed.
        """
        if not self._bound.num_open:
            self._tasks.note_news()  # No result was expected before.
        limit = self._bound.open(updates)
        self._waiting.put((function, arguments, on_end, limit, updates))

    def wait(self) -> None:
        """Waits briefly for a call to end. The caller must hold the lock of `news`.

        Raises:
          WorkerLost: if lost processes make further waiting pointless.
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
        """Waits until no call is open.

        Raises:
          WorkerLost: if processes are lost.
        """
        with self.news:
            while self._bound.num_open:
                self.wait()
            self.check()

    def _work(self) -> None:
        while True:
            function, arguments, on_end, limit, updates = self._waiting.get()
            results, error = self._run(function, arguments)
            loss = None if error is None else self._tasks.blame(error)
            with self.news:
                self._bound.close(limit, updates)
                if loss is not None:
                    self._failure = self._failure or loss
                if on_end(results, error):
                    self._tasks.note_news()
                if self._is_halted and not self._bound.num_open:
                    self._clear()
                self.news.notify_all()

    def _run(self, function: Any, arguments: Sequence[Any]) -> tuple[Any, Exception | None]:
        if self._is_halted:
            return None, None
        try:
            remote = self._coordinator.schedule(function, args=tuple(arguments))
        except Exception:
            # This is the error of an earlier call, whose own thread reports it. The coordinator
            # dropped this call.
            self._is_halted = True
            return None, None
        results, error = _fetch(remote)
        # The coordinator keeps the error of a call. At the next `schedule` it would cancel all
        # other calls in the middle of their steps. So no call is scheduled until these have ended.
        self._is_halted |= error is not None
        return results, None if isinstance(error, tf.errors.CancelledError) else error

    def _clear(self) -> None:
        """Clears the errors that the coordinator has kept. All calls must have ended."""
        with contextlib.suppress(Exception):
            self._coordinator.join()
        self._is_halted = False


def _fetch(remote: Any) -> tuple[Any, Exception | None]:
    """Waits for a call; returns its results, or its error."""
    seen: Exception | None = None
    while True:
        try:
            return remote.get(), None
        except Exception as error:
            if error is seen:
                return None, error
            # If a worker dies between a call and the fetch of its results, every fetch raises a new
            # error until the coordinator has repeated the call. An error of the call itself is the
            # same object each time.
            if seen is not None:
                time.sleep(_PATIENCE)
            seen = error
