"""The engine that runs every node as a process of this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping

from launchpad import errors
from launchpad.engines import channel as lp_channel
from launchpad.engines import (
    child,
    commands,
    engine,
    forking,
    local_placement,
    node_process,
    preloading,
    remote_worker,
    terminals,
)
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from launchpad.nodes import command
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
        self._forks: forking.ForkServer | None = None
        self._guard = guard.Guard()
        self._terminal = (
            terminals.Files() if launch.terminal == terminals.FILES else terminals.CurrentTerminal()
        )
        nodes = [member.node for member in launch.members]
        if not all(isinstance(node, command.CommandNode) for node in nodes):
            self._forks = forking.current(preloading.needed(nodes, self._nodes.values()))

    def make_worker(
        self, member: lp_member.Member, supervisor: lp_supervisor.Supervisor
    ) -> lp_member.Worker:
        """Returns a new incarnation of a node, not started yet."""
        environment = {
            "PYTHONUNBUFFERED": "1",
            **self._launch.environment,
            **self._environments[member.name],
        }
        node = member.node
        if isinstance(node, command.CommandNode):
            environment |= node.environment
            return commands.CommandWorker(node, member, supervisor, environment, self._guard)
        spec = engine.make_spec(self._launch, member, self._nodes[member.name])
        start = _Start(spec, self._launch, environment, self._forks)
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
        start: _Start,
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
        channel, theirs = socket.socketpair()
        stdout, its_stdout = os.pipe()
        stderr, its_stderr = os.pipe()
        with theirs, os.fdopen(its_stdout, "wb"), os.fdopen(its_stderr, "wb"):
            copier = output.LineCopier(
                self._write, {"stdout": os.fdopen(stdout, "rb"), "stderr": os.fdopen(stderr, "rb")}
            )
            take_charge = self._start(theirs.fileno(), its_stdout, its_stderr)
        with self._life:
            is_unwanted = self._is_killed
            # If it was killed before, its end has been reported. Its program may have ended and
            # closed the guard; a guard that started again would never be closed.
            group = self._group = take_charge(None if is_unwanted else self._guard)
        if is_unwanted:
            group.kill()
        self.attach(lp_channel.Channel(channel, lp_channel.LAUNCHER_PATIENCE_SECS))
        code = group.wait()
        copier.drain(_OUTPUT_SECS)
        self.report_end(remote_worker.death(code))
        if is_unwanted:  # Its end was reported before, and nothing else closes its channel.
            self.close()


class _Start:
    """Starts the process of a node: as a fork, or as a fresh interpreter."""

    def __init__(
        self,
        spec: child.NodeSpec,
        launch: engine.Launch,
        environment: Mapping[str, str],
        server: forking.ForkServer | None,
    ):
        self._spec = spec
        self._launch = launch
        self._environment = environment
        self._server = server
        self._search_path = launch.search_path_of(spec.launch_config)
        self._name = f"{spec.label}/{spec.index}"

    def __call__(
        self, channel: int, stdout: int, stderr: int
    ) -> Callable[[guard.Guard | None], process_group.ProcessGroup]:
        """Starts it. The kernel kills a fresh interpreter when the thread that calls this ends.

        Args:
          channel: Descriptor of its end of the control channel.
          stdout: Descriptor of its standard output.
          stderr: Descriptor of its standard error.

        Returns:
          A function that takes charge of the process: a child that leads a session of its own.

        Raises:
          OSError: it could not be started.
        """
        memory = node_process.Start(
            self._environment, self._launch.directory, self._search_path, self._spec
        ).write()
        try:
            config = self._spec.launch_config
            is_fresh = config.fresh_interpreter or bool(config.interpreter)
            if self._server and not is_fresh and self._server.serves(self._environment):
                try:
                    forked = self._server.fork(self._name, [channel, memory, stdout, stderr])
                    return lambda watchman: forking.ForkedGroup(*forked, watchman)
                except forking.ForkError as error:
                    lp_supervisor.logger.debug("%s was not forked: %s", self._name, error)
            pid = self._spawn(channel, memory, stdout, stderr)
            return lambda watchman: process_group.ProcessGroup(pid, watchman)
        finally:
            os.close(memory)

    def _spawn(self, channel: int, memory: int, stdout: int, stderr: int) -> int:
        process = subprocess.Popen(
            [
                self._spec.launch_config.absolute_interpreter_path,
                *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                "-P",  # The working directory must not precede the launcher's search path.
                *("-m", forking.TITLE, self._name),
                *(str(os.getpid()), str(channel), str(memory)),
            ],
            # Later, the process sets PYTHONPATH to its value in the node's environment again.
            env={**self._environment, "PYTHONPATH": engine.python_path(self._search_path)},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(channel, memory),
            start_new_session=True,  # The terminal's Ctrl-C goes to the launcher alone.
        )
        process.returncode = 0  # Its end is awaited by process id.
        return process.pid
