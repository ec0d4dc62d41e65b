"""A thread that runs a node, and how its end is told."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.nodes import base

_POLL_SECS = 0.001
_GRPC_SECS = 1.0
# For so long no other thread can ask for the GIL: much longer than a look at a frame takes, on a
# busy machine too, and short enough to wait for a thread that does not give it back by itself.
_SWITCH_SECS = 0.02
_SWITCH_LOCK = threading.Lock()
# `wait` is not among them: it takes the lock again whatever ends it.
_OF_CONDITIONS = frozenset(
    method.__code__
    for name, method in vars(threading.Condition).items()
    if isinstance(method, types.FunctionType) and name not in ("wait", "wait_for")
)


class NodeThread(threading.Thread):
    """A daemon thread that runs a node, can be interrupted, and always tells its end."""

    def __init__(
        self,
        name: str,
        node: base.Node,
        runtime: lp_runtime.NodeRuntime,
        on_end: Callable[[BaseException | None], None],
    ):
        super().__init__(name=name, daemon=True)
        self._node = node
        self._runtime = runtime
        self._on_end = on_end
        self._gate = threading.Lock()
        self._is_open = True

    def interrupt(self) -> None:
        """Raises SystemExit in the node's code as soon as it executes Python again.

        If the node is starting a thread, this waits until the thread runs: before, CPython 3.11
        gives both the same identity, and the exception may end the new thread, for which the node
        would then wait for ever. If the node is acquiring or releasing the lock of a condition,
        which Python code does, this waits as well: the lock would stay acquired. gRPC's compiled
        code acquires and releases conditions, too; there, the exception would strike at the
        beginning of `__exit__`. So this waits for up to a second until the node leaves gRPC: a node
        that stays longer waits for an answer, and acquires no lock before the exception strikes.
        """
        deadline = time.monotonic() + _GRPC_SECS
        while True:
            may_be_in_grpc = time.monotonic() > deadline
            with self._gate:
                if not (self._is_open and self.is_alive()):
                    return
                if self._may_be_interrupted(may_be_in_grpc):
                    with _no_other_thread():
                        if self._may_be_interrupted(may_be_in_grpc):
                            _set_async_exception(self.ident, ctypes.py_object(SystemExit))
                            return
            time.sleep(_POLL_SECS)

    def _may_be_interrupted(self, may_be_in_grpc: bool) -> bool:
        frame = sys._current_frames().get(self.ident or 0)
        return not _is_delicate(frame) and (may_be_in_grpc or not _is_in_grpc(frame))

    def run(self) -> None:
        """Runs the node, and reports its end whatever it was."""
        lp_runtime.set_thread_runtime(self._runtime)
        has_begun = False
        error = None
        # An interrupt may also strike between the node's end and the closing of the gate.
        while self._is_open:
            try:
                if not has_begun:
                    has_begun = True
                    self._node.execute()
                self._close_gate()
            except BaseException as raised:  # Whatever ends a node must be told.
                error = error or raised
        self._on_end(error)

    def _close_gate(self) -> None:
        with self._gate:
            _set_async_exception(self.ident, None)  # One that is set and not raised yet.
            self._is_open = False


def _is_delicate(frame: types.FrameType | None) -> bool:
    """Whether a thread is within `threading.Thread.start`, or takes or gives back a condition."""
    if frame is not None and frame.f_code in _OF_CONDITIONS:
        return True
    while frame is not None:
        if frame.f_code is threading.Thread.start.__code__:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _no_other_thread() -> Iterator[None]:
    """Within it, no other thread executes Python, as long as this one waits for nothing.

    Otherwise a thread could go on between a look at its frame and what follows from it.
    """
    with _SWITCH_LOCK:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECS)
        try:
            # Threads that wait for the GIL already would ask for it after the old interval.
            time.sleep(_POLL_SECS)
            yield
        finally:
            sys.setswitchinterval(interval)


def _is_in_grpc(frame: types.FrameType | None) -> bool:
    """Whether a thread executes code of gRPC, or code that this has compiled."""
    return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "grpc"


def _set_async_exception(ident: int | None, exception: Any) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident or 0), exception)


def failure_of(
    error: BaseException, runtime: lp_runtime.NodeRuntime
) -> errors.ExceptionRecord | None:
    """Returns the record of an exception that ended a node, or None if that is a normal end."""
    if isinstance(error, SystemExit) and (error.code in (None, 0) or runtime.stop_event.is_set()):
        return None
    record = errors.ExceptionRecord.of(error)
    # Others are the node's own, such as those of a save on the way out.
    if runtime.was_interrupted and record.is_collateral:
        lp_runtime.logger.warning("%s: interrupted by the stop: %r", runtime.name, error)
        return None
    return record
