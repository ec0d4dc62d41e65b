"""The engine that runs every node as a thread of this process."""

from __future__ import annotations

import dataclasses
import threading

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.engines import engine
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from launchpad.nodes import node_thread


class ThreadEngine:
    """Runs nodes as threads of this process."""

    def __init__(self, launch: engine.Launch):
        self._launch = launch

    def make_worker(
        self, member: lp_member.Member, supervisor: lp_supervisor.Supervisor
    ) -> ThreadWorker:
        """Returns a new incarnation of a node, not started yet."""
        return ThreadWorker(member, supervisor, self._launch)

    def close(self) -> None:
        """Does nothing: threads leave nothing behind."""


class ThreadWorker(lp_member.Worker):
    """A node in a daemon thread. Threads can't be killed: `kill` only raises SystemExit there."""

    is_killable = False

    def __init__(
        self,
        member: lp_member.Member,
        supervisor: lp_supervisor.Supervisor,
        launch: engine.Launch,
    ):
        self._supervisor = supervisor
        self.runtime = lp_runtime.NodeRuntime(
            member.label,
            member.index,
            launch.info,
            launch.book,
            lp_runtime.Callbacks(
                publish=lambda key, address: supervisor.post_publish(self, key, address),
                set_state=lambda state: supervisor.post_state(self, state),
                request_stop=supervisor.post_stop,
                interrupt=lambda: self._thread.interrupt(lambda: self.runtime.is_active),
                give_up=self._give_up,
                tell_failure=lambda error: supervisor.post_failing(
                    self, errors.ExceptionRecord.of(error)
                ),
            ),
            member.launch_config,
        )
        self.runtime.owned_keys = frozenset(a.key for a in member.node.addresses)
        self._thread = node_thread.NodeThread(member.name, member.node, self.runtime, self._on_end)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def notify_stop(self) -> None:
        """Sets the stop event and runs the stop handlers, in a thread of their own."""
        # Stop handlers are user code, and may block.
        name = f"{self.runtime.name} stop"
        threading.Thread(target=self.runtime.notify_stop_in_thread, name=name, daemon=True).start()

    def release(self) -> None:
        """Lets the server of the node end."""
        self.runtime.release()

    def kill(self) -> None:
        """Raises SystemExit in the thread, which can't be killed."""
        self.runtime.release()
        # In another thread: it waits while the node acquires a condition, possibly forever.
        interrupt = self._thread.interrupt
        threading.Thread(target=interrupt, name=f"{self.runtime.name} kill", daemon=True).start()

    def _give_up(self, error: Exception, stuck_secs: float) -> None:
        """Ends the program: a thread whose code does not return cannot be replaced."""
        record = dataclasses.replace(errors.ExceptionRecord.of(error), stuck_secs=stuck_secs)
        self._supervisor.post_failure(self, record)

    def _on_end(self, error: BaseException | None) -> None:
        self.runtime.mark_ended()
        record = node_thread.failure_of(error, self.runtime) if error is not None else None
        if record is not None:  # The programs that it has launched end with it.
            self.notify_stop()
        self._supervisor.post_ended(self, record)
