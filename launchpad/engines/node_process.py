"""Turns a new process, forked or fresh, into the node that the launcher describes."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import socket
from collections.abc import Mapping, Sequence

from launchpad.engines import channel as lp_channel
from launchpad.engines import child as lp_child
from launchpad.engines import inherited as lp_inherited
from rl_replicator.processes import signals


@dataclasses.dataclass(frozen=True)
class Start:
    """What a new process needs to become a node, in a memory file.

    Attributes:
      launcher: Process id of the launcher.
      environment: Environment variables of the node.
      directory: Working directory; empty if the launcher's own was removed.
      search_path: Directories from which Python imports first.
      inherited: What it would have inherited if it had started when the program was launched.
      spec: The node.
    """

    launcher: int
    environment: Mapping[str, str]
    directory: str
    search_path: Sequence[str]
    inherited: lp_inherited.Inherited
    spec: lp_child.NodeSpec

    def write(self) -> int:
        """Returns the descriptor of a new memory file that holds this description."""
        memory = os.memfd_create("launchpad")
        with os.fdopen(memory, "wb", closefd=False) as file:
            file.write(pickle.dumps(self))
        os.lseek(memory, 0, os.SEEK_SET)
        return memory


def run(connection: int, memory: int) -> int:
    """Becomes the node that the launcher describes, and runs it to its end.

    Args:
      connection: Descriptor of the control channel.
      memory: Descriptor of the memory file with a `Start`.

    Returns:
      The exit status.
    """
    take_no_interrupt()
    with os.fdopen(memory, "rb") as file:
        start: Start = pickle.loads(file.read())
    if os.getppid() != start.launcher:
        return 1  # The launcher died before `die_with_parent` was called.
    start.inherited.apply()
    _set_environment(start.environment)
    if start.directory:
        os.chdir(start.directory)
    lp_child.import_from(start.search_path)
    channel = lp_channel.Channel(socket.socket(fileno=connection))
    return lp_child.Child(channel, start.spec).run()


def take_no_interrupt() -> None:
    """Makes SIGINT do nothing: the launcher tells its processes to stop.

    It installs a handler instead of ignoring the signal, because programs that this process
    executes or forks would inherit SIG_IGN: SIGINT must interrupt them as usual.
    """
    signals.override(signal.SIGINT, lambda number, frame: None)


def leave(status: int) -> None:
    """Ends this process like an interpreter, but without the teardown of modules."""
    lp_child.run_exit_handlers()
    os._exit(status)


def _set_environment(wanted: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if name not in wanted]:
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
