"""The engine that runs every node as a thread of this process."""

from __future__ import annotations

import ctypes
import threading

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.launch import supervisor as lp_supervisor


class ThreadWorker:
    """A node in a daemon thread. Threads can't be killed: `kill` only raises SystemExit there."""

    def __init__(
        self,
        member: lp_supervisor.Member,
        supervisor: lp_supervisor.Supervisor,
        info: lp_runtime.ProgramInfo,
        book: lp_runtime.AddressBook,
    ):
        self._node = member.node
        self._supervisor = supervisor
        self._thread = threading.Thread(target=self._work, name=member.name, daemon=True)
        self.runtime = lp_runtime.NodeRuntime(
            member.label,
            member.index,
            info,
            book,
            lp_runtime.Callbacks(
                publish=supervisor.post_publish,
                set_state=lambda state: supervisor.post_state(self, state),
                request_stop=supervisor.post_stop,
                interrupt=self._raise_system_exit,
            ),
            member.launch_config,
        )
        self.runtime.owned_keys = frozenset(a.key for a in member.node.addresses)

    def start(self) -> None:
        self._thread.start()

    def notify_stop(self) -> None:
        # Stop handlers are the users' code, and may block.
        name = f"{self.runtime.name} stop"
        threading.Thread(target=self._run_stop, name=name, daemon=True).start()

    def release(self) -> None:
        self.runtime.release_event.set()

    def kill(self) -> None:
        self.runtime.release_event.set()
        self._raise_system_exit()

    def send_address(self, key: str, address: str) -> None:
        pass  # All threads share one book.

    def close(self) -> None:
        self.runtime.close()

    def _run_stop(self) -> None:
        lp_runtime.set_thread_runtime(self.runtime)
        self.runtime.notify_stop()

    def _work(self) -> None:
        lp_runtime.set_thread_runtime(self.runtime)
        record = None
        try:
            self._node.execute()
        except BaseException as error:  # Whatever ends a node must reach the supervisor.
            record = failure_of(error, self.runtime)
        self._supervisor.post_ended(self, record)

    def _raise_system_exit(self) -> None:
        if self._thread.is_alive() and self._thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident), ctypes.py_object(SystemExit)
            )


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
