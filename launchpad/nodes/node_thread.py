"""A thread that runs a node and reports its end."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.nodes import base


class NodeThread(threading.Thread):
    """A daemon thread that runs a node, can be interrupted, and always reports its end."""

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

    def interrupt(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Raises SystemExit in the node's code as soon as it executes Python again.

        Like the exception of a signal in a process, it may come between any two bytecodes, even
        where the node has just acquired a lock. A node that must not be ended there stops by
        itself; see `stop_event`.

        Args:
          is_wanted: Whether to interrupt what the node does now; that may end by itself meanwhile.
        """
        with self._gate:
            if self._is_open and self.is_alive() and is_wanted():
                _raise_in(self.ident, ctypes.py_object(SystemExit))

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
        self._on_end(error)

    def _close_gate(self) -> None:
        with self._gate:
            # Clears an exception that is set but not raised yet.
            _raise_in(self.ident, None)
            self._is_open = False


def _raise_in(ident: int | None, error: ctypes.py_object | None) -> None:
    """Sets the exception that a thread raises next; None clears it."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident or 0), error)


def failure_of(
    error: BaseException, runtime: lp_runtime.NodeRuntime
) -> errors.ExceptionRecord | None:
    """Returns the record of an exception that ended a node, or None if that is a normal end."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    # Work inside the node, such as a program, may report by KeyboardInterrupt that it was stopped.
    if isinstance(error, SystemExit | KeyboardInterrupt) and runtime.stop_event.is_set():
        return None
    record = errors.ExceptionRecord.of(error)
    # Other errors are the node's own, such as those of a last save.
    if runtime.was_interrupted and record.is_collateral:
        lp_runtime.logger.warning("%s: interrupted by the stop: %r", runtime.name, error)
        return None
    return record
