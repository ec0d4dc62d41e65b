"""The engine that runs every node as a thread of this process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from launchpad import address_book as lp_address_book
from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.launch import member as lp_member
from launchpad.launch import supervisor as lp_supervisor
from launchpad.nodes import base


class ThreadWorker:
    """A node in a daemon thread. Threads can't be killed: `kill` only raises SystemExit there."""

    def __init__(
        self,
        member: lp_member.Member,
        supervisor: lp_supervisor.Supervisor,
        info: lp_runtime.ProgramInfo,
        book: lp_address_book.AddressBook,
    ):
        self._supervisor = supervisor
        self.runtime = lp_runtime.NodeRuntime(
            member.label,
            member.index,
            info,
            book,
            lp_runtime.Callbacks(
                publish=supervisor.post_publish,
                set_state=lambda state: supervisor.post_state(self, state),
                request_stop=supervisor.post_stop,
                interrupt=lambda: self._thread.interrupt(),
            ),
            member.launch_config,
        )
        self.runtime.owned_keys = frozenset(a.key for a in member.node.addresses)
        self._thread = NodeThread(member.name, member.node, self.runtime, self._on_end)

    def start(self) -> None:
        self._thread.start()

    def notify_stop(self) -> None:
        # Stop handlers are the users' code, and may block.
        name = f"{self.runtime.name} stop"
        threading.Thread(target=self.runtime.notify_stop_in_thread, name=name, daemon=True).start()

    def release(self) -> None:
        self.runtime.release()

    def kill(self) -> None:
        self.runtime.release()
        self._thread.interrupt()

    def send_address(self, key: str, address: str) -> None:
        pass  # All threads share one book.

    def close(self) -> None:
        self.runtime.close()

    def _on_end(self, error: BaseException | None) -> None:
        self.runtime.mark_ended()
        record = failure_of(error, self.runtime) if error is not None else None
        self._supervisor.post_ended(self, record)


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
        """Raises SystemExit in the node's code as soon as it executes Python again."""
        with self._gate:
            if self._is_open and self.is_alive():
                _set_async_exception(self.ident, ctypes.py_object(SystemExit))

    def run(self) -> None:
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


def _set_async_exception(ident: int | None, exception: Any) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident or 0), exception)


def failure_of(
    error: BaseException, runtime: lp_runtime.NodeRuntime
) -> errors.ExceptionRecord | None:
    """Returns the record of an exception that ended a node, or None if that is a normal end."""
    if isinstance(error, SystemExit) and (error.code in (None, 0) or runtime.stop_event.is_set()):
        return None
    if runtime.was_interrupted:
        lp_runtime.logger.warning("%s: interrupted by the stop: %r", runtime.name, error)
        return None
    return errors.ExceptionRecord.of(error)
