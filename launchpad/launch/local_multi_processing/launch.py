"""The engine that runs every node as a process of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from launchpad import errors
from launchpad.launch import channel as lp_channel
from launchpad.launch import engine, remote_worker
from launchpad.launch import member as lp_member
from launchpad.launch import supervisor as lp_supervisor
from launchpad.launch.local_multi_processing import (
    fork_client,
    guard,
    imports,
    output,
    placement,
    process_start,
)

# Output of a process that has ended is awaited this long, in seconds.
_OUTPUT_SECS = 1.0


class ProcessEngine:
    """Makes processes of this machine."""

    def __init__(self, launch: engine.Launch):
        """Pickles the nodes and hands out the GPUs: an error is raised before anything starts."""
        self._launch = launch
        self._nodes = engine.dump_nodes(launch)
        self._environments = placement.environments(launch.members)
        self._guard = guard.Guard()
        self._fork_server = fork_client.current()
        nodes = [member.node for member in launch.members]
        self._fork_server.preload(imports.needed(nodes, self._nodes.values()))

    def make_worker(
        self, member: lp_member.Member, supervisor: lp_supervisor.Supervisor
    ) -> ProcessWorker:
        """Returns a new incarnation of a node, not started yet."""
        spec = engine.make_spec(self._launch, member, self._nodes[member.name])
        start = process_start.ProcessStart(spec, self._environments[member.name], self._fork_server)
        return ProcessWorker(member, supervisor, start, self._guard)

    def close(self) -> None:
        """Ends the guard; all nodes have ended."""
        self._guard.close()


class ProcessWorker(remote_worker.RemoteWorker):
    """A node in a process of its own, which leads a session of its own."""

    def __init__(
        self,
        member: lp_member.Member,
        supervisor: lp_supervisor.Supervisor,
        start: process_start.ProcessStart,
        watchman: guard.Guard,
    ):
        super().__init__(member, supervisor)
        self._start = start
        self._guard = watchman
        self._pid: int | None = None
        self._is_killed = False
        self._is_reaped = False
        self._life = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the node; None before it is started."""
        return self._pid

    def start(self) -> None:
        """Begins to start the process; that takes as long as the imports of the fork server."""
        # One thread from the start to the end: the kernel kills a child when the thread that
        # started it ends.
        self._thread(self._live, "process")

    def kill(self) -> None:
        """Kills the process and what it has started."""
        with self._life:
            self._is_killed = True
            if self._pid is not None:
                self._kill_group(self._pid)
                return
        self.report_end(_death(-signal.SIGKILL))  # It was not there yet.

    def _live(self) -> None:
        try:
            started = self._start()
        except OSError as error:
            self.report_end(errors.ExceptionRecord.of(error))
            return
        with self._life:
            self._pid = started.pid
            is_unwanted = self._is_killed
            if is_unwanted:
                self._kill_group(started.pid)
        self._guard.watch(started.pid)
        self.attach(lp_channel.Channel(started.channel))
        pumps = [
            self._thread(output.pump, target, self.name, os.fdopen(file, "rb"), target)
            for file, target in ((started.stdout, "stdout"), (started.stderr, "stderr"))
        ]
        code = self._await_end(started.pid)
        deadline = time.monotonic() + _OUTPUT_SECS
        for pump in pumps:
            pump.join(max(0.0, deadline - time.monotonic()))
        self.report_end(_death(code) if code else None)
        if is_unwanted:  # Its end was told before, and nobody else closes its channel.
            self.close()

    def _await_end(self, pid: int) -> int:
        # Not reaped yet: until then nobody else's process or group can have this number.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with self._life:
            self._kill_group(pid)  # What it started must not outlive it.
            _, status = os.waitpid(pid, 0)
            self._is_reaped = True
        self._guard.forget(pid)
        return os.waitstatus_to_exitcode(status)

    def _kill_group(self, pid: int) -> None:
        if not self._is_reaped:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _death(code: int) -> errors.ExceptionRecord:
    return errors.ExceptionRecord(errors.PROCESS_DIED, output.describe(code), "")
