"""The main module of a node's process: `python -m launchpad.launch.process_entry NAME FD FD`."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import sys

from launchpad.launch import channel as lp_channel
from launchpad.launch import child as lp_child

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Makes the kernel kill this process when the launcher dies, whatever it is doing then."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(argv: list[str]) -> int:
    """Becomes the node that the launcher describes in a memory file."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(argv[2]))
    with os.fdopen(int(argv[3]), "rb") as memory:
        parent_pid, python_path, spec = pickle.loads(memory.read())
    if os.getppid() != parent_pid:
        return 1  # The launcher died before the kernel was told to watch it.
    # The launcher's own PYTHONPATH, in place of the one that this interpreter was started with.
    os.environ.pop("PYTHONPATH", None)
    if python_path is not None:
        os.environ["PYTHONPATH"] = python_path
    return lp_child.Child(lp_channel.Channel(connection), spec).run()


if __name__ == "__main__":
    _status = main(sys.argv)
    lp_child.run_exit_handlers()
    os._exit(_status)
