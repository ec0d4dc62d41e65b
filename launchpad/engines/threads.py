"""The engine that runs every node as a thread of this process."""

from __future__ import annotations

import functools
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
            functools.partial(supervisor.post, self),
            member.launch_config,
        )
        self._thread = node_thread.NodeThread(member.name, member.node, self.runtime, self._on_end)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def notify_stop(self) -> None:
        """Sets the stop event and runs the stop handlers, in a thread of their own."""
        self.runtime.begin_stop()

    def release(self) -> None:
        """Lets the server of the node end."""
        self.runtime.release()

    def kill(self) -> None:
        """Raises SystemExit in the thread, which can't be killed."""
        self.runtime.release()
        # In another thread: it waits while the node acquires a condition, possibly forever.
        name = f"{self.runtime.name} kill"
        threading.Thread(target=self._thread.interrupt, name=name, daemon=True).start()

    def _on_end(self, error: BaseException | None) -> None:
        if error is None:
            self._supervisor.post(self, "ended", None)
        else:
            self.notify_stop()  # The programs that it has launched end with it.
            self._supervisor.post(self, "ended", errors.ExceptionRecord.of(error))
