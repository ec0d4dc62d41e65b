"""The engine that runs every node as a process of this machine."""

from __future__ import annotations

import os
import signal
import threading

from launchpad import errors
from launchpad.engines import channel as lp_channel
from launchpad.engines import (
    engine,
    fork_client,
    imports,
    local_placement,
    process_start,
    remote_worker,
    terminals,
)
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from rl_replicator.processes import guard, output, process_group

# How long to wait for the remaining output of a process that has ended, in seconds. It takes less
# than a second, unless this process gets no CPU time, or its own output is not read.
_OUTPUT_SECS = 30.0


class ProcessEngine:
    """Runs nodes as processes of this machine."""

    def __init__(self, launch: engine.Launch):
        """Pickles the nodes and assigns the GPUs: an error is raised before anything starts."""
        process_group.keep_statuses()
        self._launch = launch
        self._nodes = engine.dump_nodes(launch)
        self._environments = local_placement.environments(launch.members)
        self._guard = guard.Guard()
        self._terminal = (
            terminals.Files() if launch.terminal == terminals.FILES else terminals.CurrentTerminal()
        )
        self._fork_server = fork_client.current()
        nodes = [member.node for member in launch.members]
        self._fork_server.preload(imports.needed(nodes, self._nodes.values()))

    def make_worker(
        self, member: lp_member.Member, supervisor: lp_supervisor.Supervisor
    ) -> ProcessWorker:
        """Returns a new incarnation of a node, not started yet."""
        spec = engine.make_spec(self._launch, member, self._nodes[member.name])
        start = process_start.ProcessStart(
            spec, self._launch, self._environments[member.name], self._fork_server
        )
        write = self._terminal.writer(member.name)
        return ProcessWorker(member, supervisor, start, self._guard, write)

    def close(self) -> None:
        """Ends the guard and the terminal; all nodes have ended."""
        self._guard.close()
        self._terminal.close()


class ProcessWorker(remote_worker.RemoteWorker):
    """A node in a process of its own, which leads a session of its own."""

    def __init__(
        self,
        member: lp_member.Member,
        supervisor: lp_supervisor.Supervisor,
        start: process_start.ProcessStart,
        watchman: guard.Guard,
        write: output.Writer,
    ):
        super().__init__(member, supervisor)
        self._write = write
        self._start = start
        self._guard = watchman
        self._group: process_group.ProcessGroup | None = None
        self._is_killed = False
        self._life = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the node; None before it is started."""
        return self._group.pid if self._group is not None else None

    @property
    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped the process."""
        return self._group is not None and self._group.is_stopped

    def start(self) -> None:
        """Starts the process in the background, because the fork server may still be importing."""
        # The same thread starts and awaits it: the kernel kills a child when the thread that
        # started it ends.
        self._thread(self._live, "process")

    def kill(self) -> None:
        """Kills the process and what it has started."""
        with self._life:
            self._is_killed = True
            if self._group is not None:
                self._group.kill()
                return
        self.report_end(remote_worker.death(-signal.SIGKILL))  # It has not started yet.

    def _live(self) -> None:
        try:
            self._start_and_await()
        except Exception as error:  # Otherwise the supervisor would wait forever.
            if self._group is not None:
                self._group.kill()
            self.report_end(errors.ExceptionRecord.of(error))

    def _start_and_await(self) -> None:
        started = self._start()
        with self._life:
            is_unwanted = self._is_killed
            # If it was killed before, its end has been reported. Its program may have ended and
            # closed the guard; a guard that started again would never be closed.
            watchman = None if is_unwanted else self._guard
            group = self._group = process_group.ProcessGroup(started.pid, watchman)
        if is_unwanted:
            group.kill()
        self.attach(lp_channel.Channel(started.channel, lp_channel.LAUNCHER_PATIENCE_SECS))
        streams = {
            "stdout": os.fdopen(started.stdout, "rb"),
            "stderr": os.fdopen(started.stderr, "rb"),
        }
        copier = output.LineCopier(self._write, streams)
        code = group.wait()
        copier.drain(_OUTPUT_SECS)
        self.report_end(remote_worker.death(code) if code else None)
        if is_unwanted:  # Its end was reported before, and nothing else closes its channel.
            self.close()
