"""The process that nodes are forked from: `python -m ...fork_server FD PID`.

It imports what nodes need, once, and then forks a node for each request of the launcher. It runs
nothing else: a process with threads or with an initialised library can't be forked safely.

A node is forked twice: the process in between ends immediately, so the node becomes a child of the
launcher, which has made itself a child subreaper for that moment. The kernel then reports the
node's end to the launcher alone, and the end of this process affects no node.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import importlib
import os
import pathlib
import pickle
import re
import socket
import sys
import time
from collections.abc import Sequence

from launchpad.engines import child, fork_requests, node_process
from rl_replicator.processes import command_entry, process_group

# A forked node waits this long for the launcher to become its parent, in seconds.
_ADOPTION_SECS = 10.0
# The module that a node's fresh interpreter runs. Forked nodes show it, too, to be found by it.
_TITLE = "launchpad.engines.process_entry"
_CONTEXT = "tensorflow.python.eager.context"


@dataclasses.dataclass(frozen=True)
class Forked:
    """What a new node starts with.

    Attributes:
      name: "label/index" of the node.
      connection: Descriptor of its control channel.
      memory: Descriptor of the memory file that describes it.
      answer: Descriptor of the pipe to the fork server.
    """

    name: str
    connection: int
    memory: int
    answer: int


def serve(control: socket.socket, launcher: int) -> Forked | None:
    """Answers the launcher's requests.

    Args:
      control: Connection to the launcher.
      launcher: Process id of the launcher.

    Returns:
      In a node: what it starts with. In the server itself: None, after the launcher's end.
    """
    while True:
        message, files, _, _ = socket.recv_fds(
            control, fork_requests.MESSAGE_BYTES, 4, socket.MSG_CMSG_CLOEXEC
        )
        if not message:
            return None
        kind, _, name = message.partition(b" ")
        if kind == fork_requests.IMPORT:
            with os.fdopen(files[0], "rb") as memory:
                _import(pickle.loads(memory.read()))
        elif kind == fork_requests.CHECK:
            control.send(obstacle().encode() or fork_requests.FREE)
        else:
            forked = _fork(control, launcher, name.decode(), files)
            if forked is not None:
                return forked
            for file in files:
                os.close(file)


def _import(imports: fork_requests.Imports) -> None:
    sys.argv[1:] = imports.argv[1:]
    child.import_from(imports.search_path)
    for name in imports.names:
        try:
            importlib.import_module(name)
        except BaseException:  # The node that needs it raises the same error, for the user to see.
            continue
    # These objects stay: garbage collections in nodes need not visit them, nor copy their pages.
    gc.collect()
    gc.freeze()


def _fork(control: socket.socket, launcher: int, name: str, files: Sequence[int]) -> Forked | None:
    """Forks a node; returns None in the server, after answering the launcher."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    between = os.fork()
    if between:
        os.close(writing)
        os.waitpid(between, 0)
        with os.fdopen(reading, "rb") as pipe:
            control.send(pipe.read() or b"the new process did not become a child of the launcher")
        return None
    try:
        if os.fork():
            os._exit(0)
        os.close(reading)
        control.close()
        connection, memory, stdout, stderr = files
        _settle(launcher, stdout, stderr)
        return Forked(name, connection, memory, writing)
    except BaseException:
        os._exit(1)


def _settle(launcher: int, stdout: int, stderr: int) -> None:
    """Sets up a forked process like one that the launcher has started itself."""
    os.setsid()
    deadline = time.monotonic() + _ADOPTION_SECS
    while os.getppid() != launcher:
        if time.monotonic() > deadline:
            os._exit(1)  # The launcher is gone, or there is no way to become its child.
        time.sleep(0.001)
    command_entry.die_with_parent()
    for file, target in ((stdout, 1), (stderr, 2)):
        os.dup2(file, target)
        os.close(file)
    if "numpy" in sys.modules:
        # No two nodes may draw the same numbers. Python's `random` reseeds itself after a fork.
        sys.modules["numpy"].random.seed()


def obstacle() -> str:
    """Returns why this process must not be forked; empty if it may be."""
    if len(sys._current_frames()) > 1:
        return "an imported module has started a thread"
    context = getattr(sys.modules.get(_CONTEXT), "_context", None)
    if getattr(context, "_context_handle", None) is not None:
        return "an imported module has initialised TensorFlow"
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    libraries = {line.split()[-1] for line in maps if "/" in line}
    if any(re.search(r"/lib(EGL|OSMesa|GLX)", library) for library in libraries):
        return "an imported module has loaded OpenGL"
    if any(target.startswith(("/dev/nvidia", "/dev/dri")) for target in _open_files()):
        return "an imported module has opened a GPU"
    # OpenBLAS creates threads when it is loaded, and creates them anew after a fork.
    pools = sum("openblas" in pathlib.Path(library).name for library in libraries)
    if len(os.listdir("/proc/self/task")) > 1 + pools * (_pool_size() - 1):
        return "an imported module has started a native thread"
    return ""


def _pool_size() -> int:
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdecimal():
            return max(1, int(os.environ[name]))
    return len(os.sched_getaffinity(0))


def _open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue  # The descriptor of the listing itself.
    return found


def set_command_line(*words: str) -> None:
    """Changes the command line that `ps` shows; cut to the length of the present one."""
    fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5).
    text = b"\0".join(word.encode() for word in words)[: max(0, end - begin - 1)]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def main() -> int:
    """Serves the launcher; returns the exit status of the server, or of a node."""
    connection, launcher = map(int, sys.argv[1:])
    command_entry.die_with_parent()
    node_process.take_no_interrupt()
    process_group.keep_statuses()
    if os.getppid() != launcher:
        return 1  # It died before `die_with_parent` was called.
    forked = serve(socket.socket(fileno=connection), launcher)
    if forked is None:
        return 0
    set_command_line(sys.executable, "-m", _TITLE, forked.name)
    os.write(forked.answer, str(os.getpid()).encode())
    os.close(forked.answer)
    return node_process.run(forked.connection, forked.memory)


if __name__ == "__main__":
    node_process.leave(main())
