"""The engine that runs every node as a process of this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Mapping

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.engines import channel as lp_channel
from launchpad.engines import engine, forking, node_process, placement
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from launchpad.nodes import python
from rl_replicator.processes import guard, output, process_group

logger = logging.getLogger("launchpad")

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
        self._environments = placement.environments(launch.members)
        self._forks: forking.ForkServer | None = None
        self._guard = guard.Guard()
        nodes = [member.node for member in launch.members]
        if not all(isinstance(node, python.CommandNode) for node in nodes):
            self._forks = forking.current([name for node in nodes for name in node.imports])

    def make_worker(
        self, member: lp_member.Member, supervisor: lp_supervisor.Supervisor
    ) -> LocalWorker:
        """Returns a new incarnation of a node, not started yet."""
        environment = {
            "PYTHONUNBUFFERED": "1",
            **self._launch.environment,
            **self._environments[member.name],
        }
        if isinstance(member.node, python.CommandNode):
            return CommandWorker(member, supervisor, self._guard, environment)
        spec = engine.make_spec(
            self._launch,
            member,
            self._nodes[member.name],
            {**dict.fromkeys((*forking.RUN_TIME_VARIABLES, "PYTHONPATH")), **environment},
            self._launch.search_path_of(member.launch_config),
        )
        assert self._forks is not None
        return ProcessWorker(member, supervisor, self._guard, spec, environment, self._forks)

    def close(self) -> None:
        """Ends the guard; all nodes have ended."""
        self._guard.close()


class LocalWorker(lp_channel.RemoteWorker):
    """A node that is a child process and leads a session of its own."""

    # The pipes from the process; see `output.LineCopier`.
    _streams: tuple[str, ...] = ("stdout", "stderr")

    def __init__(
        self,
        member: lp_member.Member,
        supervisor: lp_supervisor.Supervisor,
        watchman: guard.Guard,
        write: output.Writer,
    ):
        super().__init__(member, supervisor)
        self._guard = watchman
        self._write_line = write
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
        # The same thread starts and awaits it: the kernel kills a command when the thread that
        # started it ends.
        self._thread(self._live, "process")

    def kill(self) -> None:
        """Kills the process and what it has started."""
        with self._life:
            self._is_killed = True
            if self._group is not None:
                self._group.kill()
                return
        self.report_end(self._death(-signal.SIGKILL))  # It has not started yet.

    def _live(self) -> None:
        try:
            self._start_and_await()
        except Exception as error:  # Otherwise the supervisor would wait forever.
            if self._group is not None:
                self._group.kill()
            self.report_end(errors.ExceptionRecord.of(error))

    def _start_and_await(self) -> None:
        copiers, writers = [], []
        with contextlib.ExitStack() as theirs:
            for stream in self._streams:
                reading, writing = os.pipe()
                pipe = os.fdopen(reading, "rb")
                copiers.append(output.LineCopier(self._write_line, stream, pipe))
                theirs.enter_context(os.fdopen(writing, "wb"))
                writers.append(writing)
            group = self._spawn(*writers)
        with self._life:
            self._group = group
            # The program of one that was killed before may have ended and closed the guard, which
            # would never be closed if it started again.
            if self._is_killed:
                group.kill()
            else:
                group.guarded_by(self._guard)
        self._begin()
        code = group.wait()
        for copier in copiers:
            copier.drain(_OUTPUT_SECS)
        self.report_end(self._death(code))
        self.close()

    def _spawn(self, *outputs: int) -> process_group.ProcessGroup:
        """Starts the process with these descriptors as its output."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Called once the process runs and is guarded."""
        raise NotImplementedError

    def _death(self, code: int) -> errors.ExceptionRecord | None:
        """Describes the end of the process; None if it is a normal one."""
        return lp_channel.death(code)


class ProcessWorker(LocalWorker):
    """A node of Python code: a fork, or a fresh interpreter."""

    def __init__(
        self,
        member: lp_member.Member,
        supervisor: lp_supervisor.Supervisor,
        watchman: guard.Guard,
        spec: node_process.NodeSpec,
        environment: Mapping[str, str],
        server: forking.ForkServer,
    ):
        super().__init__(member, supervisor, watchman, output.prefixed(f"[{member.name}] "))
        self._spec = spec
        self._environment = environment
        self._server = server
        self._near: socket.socket | None = None

    def _spawn(self, *outputs: int) -> process_group.ProcessGroup:
        self._near, far = socket.socketpair()
        memory = os.memfd_create("launchpad")
        with far, os.fdopen(memory, "r+b") as file:
            file.write(pickle.dumps(self._spec))
            file.seek(0)
            config = self._spec.launch_config
            is_fresh = config.fresh_interpreter or bool(config.interpreter)
            if not is_fresh and self._server.serves(self._environment):
                try:
                    return self._server.fork(self.name, [far.fileno(), memory, *outputs])
                except forking.ForkError as error:
                    logger.debug("%s was not forked: %s", self.name, error)
            files = (far.fileno(), memory)
            process = engine.start_python(
                ["-m", forking.TITLE, self.name, *map(str, files)],
                self._environment,
                self._spec.search_path,
                files,
                config.absolute_interpreter_path,
                *outputs,
            )
            process.returncode = 0  # Its end is awaited by process id.
            return process_group.ProcessGroup(process.pid)

    def _begin(self) -> None:
        assert self._near is not None
        self.attach(lp_channel.Channel(self._near))


class CommandWorker(LocalWorker):
    """A command, which knows nothing of the other nodes."""

    _streams = ("stdout",)  # For both, so that their lines keep their order.

    def __init__(
        self,
        member: lp_member.Member,
        supervisor: lp_supervisor.Supervisor,
        watchman: guard.Guard,
        environment: Mapping[str, str],
    ):
        super().__init__(member, supervisor, watchman, output.prefixed(f"{member.name} | "))
        assert isinstance(member.node, python.CommandNode)
        self._node = member.node
        self._environment = {**environment, **member.node.environment}
        self._must_end = False

    @property
    def silent_secs(self) -> float:
        """Seconds since a signal has stopped the command, which sends no signs of life."""
        if not self.is_stopped:
            self._heard_at = time.monotonic()
        return super().silent_secs

    def notify_stop(self) -> None:
        """Asks the command to end, unless it serves others until the end."""
        if not self._node.stops_last:
            self.release()

    def release(self) -> None:
        """Asks the command to end."""
        with self._life:
            self._must_end = True
            if self._group is not None:
                self._group.send_signal(signal.SIGTERM)
                self._group.send_signal(signal.SIGCONT)  # A stopped process could not end.

    def _spawn(self, *outputs: int) -> process_group.ProcessGroup:
        return process_group.ProcessGroup.start(self._node.command, self._environment, outputs[0])

    def _begin(self) -> None:
        state = lp_runtime.SERVING if self._node.stops_last else lp_runtime.RUNNING
        self._supervisor.post(self, "state", state)
        if self._must_end:
            self.release()

    def _death(self, code: int) -> errors.ExceptionRecord | None:
        if code == 0 or self._must_end or self._is_killed:
            return None
        is_final = code in self._node.final_statuses
        is_collateral = code == self._node.collateral_status
        message = "lost another process" if is_collateral else output.describe_end(code)
        return errors.ExceptionRecord(
            errors.COMMAND_FAILED if is_final else errors.PROCESS_DIED,
            f"{message} (see its error)" if is_final else message,
            "",
            is_collateral=is_collateral,
            exit_code=code,
        )
