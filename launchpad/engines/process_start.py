"""Starts the process of a node: as a fork, or as a fresh interpreter."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import subprocess
from collections.abc import Callable, Mapping

from launchpad.engines import child, engine, fork_client, node_process

logger = logging.getLogger("launchpad")


@dataclasses.dataclass(frozen=True)
class Started:
    """A process that has been started.

    Attributes:
      pid: Its id. It is a child of this process, and leads a session and a group of its own.
      channel: Our end of its control channel.
      stdout: Descriptor from which its stdout is read.
      stderr: Descriptor from which its stderr is read.
    """

    pid: int
    channel: socket.socket
    stdout: int
    stderr: int


@dataclasses.dataclass(frozen=True)
class ProcessStart:
    """Starts the process of a node.

    Attributes:
      spec: The node.
      launch: The launch, whose environment, directory and search path the process gets.
      changes: Environment variables of the node that differ from those of the launch.
      server: Forks the process, if it can.
    """

    spec: child.NodeSpec
    launch: engine.Launch
    changes: Mapping[str, str]
    server: fork_client.ForkServer

    @property
    def name(self) -> str:
        """ "label/index" of the node."""
        return f"{self.spec.label}/{self.spec.index}"

    @property
    def _search_path(self) -> list[str]:
        return self.launch.search_path_of(self.spec.launch_config)

    def __call__(self) -> Started:
        """Starts it. The kernel kills a fresh interpreter when the thread that calls this ends.

        Raises:
          OSError: it could not be started.
        """
        environment = {**self.launch.environment, "PYTHONUNBUFFERED": "1", **self.changes}
        config = self.spec.launch_config
        is_fresh = config.fresh_interpreter or bool(config.interpreter)
        if not is_fresh and self.server.serves(environment):
            try:
                return self._start(environment, self._fork)
            except fork_client.ForkError as error:
                logger.debug("%s was not forked: %s", self.name, error)
        return self._start(environment, self._spawn)

    def _start(
        self,
        environment: Mapping[str, str],
        begin: Callable[[Mapping[str, str], list[int]], int],
    ) -> Started:
        """Calls `begin` with the descriptors of channel, memory file, stdout and stderr."""
        channel, theirs = socket.socketpair()
        memory = node_process.Start(
            os.getpid(),
            environment,
            self.launch.directory,
            self._search_path,
            self.launch.inherited,
            self.spec,
        ).write()
        stdout, its_stdout = os.pipe()
        stderr, its_stderr = os.pipe()
        try:
            pid = begin(environment, [theirs.fileno(), memory, its_stdout, its_stderr])
            return Started(pid, channel, stdout, stderr)
        except BaseException:
            channel.close()
            os.close(stdout)
            os.close(stderr)
            raise
        finally:
            theirs.close()
            for file in (memory, its_stdout, its_stderr):
                os.close(file)

    def _fork(self, environment: Mapping[str, str], files: list[int]) -> int:
        del environment  # It is in the memory file.
        return self.server.fork(self.name, files)

    def _spawn(self, environment: Mapping[str, str], files: list[int]) -> int:
        channel, memory, stdout, stderr = files
        process = subprocess.Popen(
            [
                self.spec.launch_config.absolute_interpreter_path,
                *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                "-P",  # The working directory must not precede the launcher's search path.
                "-m",
                "launchpad.engines.process_entry",
                self.name,
                str(channel),
                str(memory),
            ],
            # Later, the process sets PYTHONPATH to its value in `environment` again.
            env={**environment, "PYTHONPATH": engine.python_path(self._search_path)},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(channel, memory),
            start_new_session=True,  # The terminal's Ctrl-C goes to the launcher alone.
        )
        process.returncode = 0  # Its end is awaited by process id, as for a fork.
        return process.pid
