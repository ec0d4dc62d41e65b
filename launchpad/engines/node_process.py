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
from rl_replicator.processes import signals


@dataclasses.dataclass(frozen=True)
class Start:
    """What a new process needs to become a node, in a memory file.

    Attributes:
      environment: Environment variables of the node.
      directory: Working directory; empty if the launcher's own was removed.
      search_path: Directories from which Python imports first.
      spec: The node.
    """

    environment: Mapping[str, str]
    directory: str
    search_path: Sequence[str]
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
    # SIGINT does nothing: the launcher tells its processes to stop. It is not ignored, because
    # programs that this process executes or forks would inherit that.
    signals.override(signal.SIGINT, lambda number, frame: None)
    with os.fdopen(memory, "rb") as file:
        start: Start = pickle.loads(file.read())
    for name in [name for name in os.environ if name not in start.environment]:
        del os.environ[name]
    os.environ.update(start.environment)
    if start.directory:
        os.chdir(start.directory)
    lp_child.import_from(start.search_path)
    channel = lp_channel.Channel(socket.socket(fileno=connection))
    return lp_child.Child(channel, start.spec).run()


def leave(status: int) -> None:
    """Ends this process like an interpreter, but without the teardown of modules."""
    lp_child.run_exit_handlers()
    os._exit(status)
