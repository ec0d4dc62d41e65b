"""A thread that runs a node and reports its end."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import logging
import operator
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.nodes import base

_POLL_SECS = 0.001
_STILL_SECS = 1.0
_GC_LOCK = threading.Lock()
# Python code that acquires or releases a lock. `wait` is not included: it acquires the lock again
# however it ends.
_OF_LOCKS = frozenset(
    [
        *(
            method.__code__
            for name, method in vars(threading.Condition).items()
            if isinstance(method, types.FunctionType) and name not in ("wait", "wait_for")
        ),
        logging.Handler.acquire.__code__,
        logging.Handler.release.__code__,
        logging._acquireLock.__code__,  # type: ignore[attr-defined]
        logging._releaseLock.__code__,  # type: ignore[attr-defined]
    ]
)
# Most of this module also acquires or releases locks, around the code of the imported modules.
_OF_IMPORTS = "importlib._bootstrap"


class NodeThread(threading.Thread):
    """A daemon thread that runs a node, can be interrupted, and always reports its end."""

    def __init__(
        self,
        name: str,
        node: base.Node,
        runtime: lp_runtime.NodeRuntime,
        on_end: Callable[[BaseException | None], None],
    ):
        """Prepares the thread.

        Args:
          name: Its name.
          node: The node.
          runtime: The node's runtime; its `interrupt` interrupts this thread.
          on_end: Called at the end, with the error with which the node has failed, or None.
        """
        super().__init__(name=name, daemon=True)
        self._node = node
        self._runtime = runtime
        runtime.owned_keys = frozenset(address.key for address in node.addresses)
        runtime.interrupt = lambda: self.interrupt(lambda: runtime.is_active)
        self._on_end = on_end
        self._gate = threading.Lock()
        self._is_open = True

    def interrupt(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Raises SystemExit in the node's code as soon as it executes Python again.

        If the node is starting a thread, this waits until that thread runs: before, CPython 3.11
        gives both the same identity, and the exception may end the new thread, for which the node
        would then wait forever. If the node is acquiring or releasing the lock of a condition, of
        `logging` or of an import, which is done by Python code, this waits as well: the lock would
        stay acquired. gRPC's compiled code acquires and releases conditions, too; there, the
        exception would be raised at the beginning of `__exit__`. So this waits until the node
        leaves gRPC, or has been at one place there for a second: then it is waiting for an answer,
        and acquires no lock before the exception is raised.

        Args:
          is_wanted: Whether to interrupt what the node does now; that may end by itself meanwhile.
        """
        since = time.monotonic()
        place: tuple[types.FrameType | None, int] = (None, 0)
        while True:
            with self._gate, _without_gc():
                if not (self._is_open and self.is_alive()):
                    return
                frame = sys._current_frames().get(self.ident or 0)
                lasti = frame.f_lasti if frame else 0
                if (frame, lasti) != place:
                    since, place = time.monotonic(), (frame, lasti)
                # Checked after the frame: if this changes later, the node has left its place.
                if not is_wanted():
                    return
                stands_still = time.monotonic() - since > _STILL_SECS
                may_strike = not is_delicate(frame) and (stands_still or not _is_in_grpc(frame))
                if frame and may_strike and _strike(self.ident or 0, frame, lasti):
                    return
            time.sleep(_POLL_SECS)

    def run(self) -> None:
        """Runs the node, and reports its end, whatever the cause."""
        lp_runtime.set_thread_runtime(self._runtime)
        has_begun = False
        error = None
        # An interrupt may also arrive between the node's end and the closing of the gate.
        while self._is_open:
            try:
                if not has_begun:
                    has_begun = True
                    self._node.execute()
                self._close_gate()
            except BaseException as raised:  # Whatever ends a node must be reported.
                error = error or raised
        has_reported = False
        while not has_reported:
            try:
                self._runtime.mark_ended()
                has_failed = error is not None and is_failure(error, self._runtime)
                self._on_end(error if has_failed else None)
                has_reported = True
            except SystemExit:  # Acme's stop handlers raise it in this thread at any time.
                continue

    def _close_gate(self) -> None:
        with self._gate:
            # The end of a pass raises an exception that is set but not raised yet. None can't take
            # it back: CPython 3.11 then looks for one at every call, and a thread with a debugger
            # or a profiler goes no further.
            for _ in range(1):
                pass
            self._is_open = False


def is_delicate(frame: types.FrameType | None) -> bool:
    """Whether a thread is within `threading.Thread.start`, or is acquiring or releasing a lock.

    Only locks of Python code matter: compiled code acquires one and enters the `with` in one step.
    """
    if frame is not None and (
        frame.f_code in _OF_LOCKS or frame.f_globals.get("__name__") == _OF_IMPORTS
    ):
        return True
    while frame is not None:
        if frame.f_code is threading.Thread.start.__code__:
            return True
        frame = frame.f_back
    return False


def _strike(ident: int, frame: types.FrameType, lasti: int) -> bool:
    """Sets SystemExit in a thread if it is at this place, and returns whether it is.

    Between the check and the call that depends on it, the thread could continue, since this thread
    may lose the GIL between any two calls. So both are in one call of compiled code, in which
    CPython gives the GIL to no other thread as long as no garbage is collected.
    """
    of_thread = map(operator.itemgetter(ident), map(operator.call, [sys._current_frames]))
    strike = functools.partial(
        ctypes.pythonapi.PyThreadState_SetAsyncExc,
        ctypes.c_ulong(ident),
        ctypes.py_object(SystemExit),
    )
    conditions = itertools.chain(
        map(operator.is_, of_thread, [frame]),
        map(operator.eq, map(operator.attrgetter("f_lasti"), [frame]), [lasti]),
        map(operator.call, [strike]),
    )
    try:
        return all(conditions)
    except KeyError:  # The thread has ended.
        return False


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """Disables garbage collection, because finalizers may give the GIL to another thread.

    CPython 3.11 collects garbage while it creates the frame object that `f_back` returns. If the
    other thread leaves the frame meanwhile, the object is built from overwritten memory: in about
    one of 8,000 interrupts, its `f_code` was missing.
    """
    with _GC_LOCK:
        is_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if is_enabled:
                gc.enable()


def _is_in_grpc(frame: types.FrameType | None) -> bool:
    """Whether a thread executes gRPC, or code that it calls, and does not wait for a condition."""
    if frame is not None and frame.f_code is threading.Condition.wait.__code__:
        return False
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "grpc":
            return True
        frame = frame.f_back
    return False


def is_failure(error: BaseException, runtime: lp_runtime.NodeRuntime) -> bool:
    """Whether a node that ended with this exception has failed; else that is a normal end."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return False
    # Work inside the node, such as a program, may report by KeyboardInterrupt that it was stopped.
    if isinstance(error, SystemExit | KeyboardInterrupt) and runtime.stop_event.is_set():
        return False
    # Other errors are the node's own, such as those of a last save.
    if runtime.was_interrupted and errors.ExceptionRecord.of(error).is_collateral:
        lp_runtime.logger.warning("%s: interrupted by the stop: %r", runtime.name, error)
        return False
    return True
