"""Python programs in forks of a process that has imported TensorFlow already.

An import of TensorFlow takes three CPU seconds, and the tests start some hundred programs that need
it. With `python()` in their commands instead of `sys.executable`, the program runs in a fork of a
server that has imported third-party packages, but nothing of this project. It has its own process
group, arguments, environment, working directory, streams and exit status. A client process stands
for it: the client passes signals on, and the two end together.

Three things differ from a new interpreter. The modules of `fork_server.PRELOADED` are imported
already, so a test of imports, or of what they print, starts `sys.executable`. All programs of a
server use the same seed for hashes of strings: a group of processes that must not depend on it has
a member that `sys.executable` runs. And the program's process id is not that of the process that
the test started: `program` returns it.

The processes of a run of the suite share one server, which the first that needs it starts. Outside
of the suite, each process has its own.

`RL_REPLICATOR_TESTS_FORK=0` in the environment makes every command start a new interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.suite.forked import client

_HERE = Path(__file__).parent
_SERVER = """
import sys
sys.path[0] = sys.argv[1]
import fork_server
fork_server.main(sys.argv[2])
"""
# The environment variable with the folder of a shared server.
_SHARED = "RL_REPLICATOR_TESTS_FORK_SHARED"
# A named pipe in this folder: the server ends when it is closed.
_PIPE = "pipe"
_servers: list[subprocess.Popen] = []


@contextlib.contextmanager
def shared(folder: Path) -> Iterator[dict[str, str]]:
    """Lets processes share one server, which ends with the context, or with this process.

    Args:
      folder: created here.

    Yields:
      Environment variables for the processes.
    """
    folder.mkdir()
    os.mkfifo(folder / _PIPE)
    end = os.open(folder / _PIPE, os.O_RDWR)  # With a reader: opening a writer alone would block.
    try:
        yield {_SHARED: str(folder)}
    finally:
        os.close(end)


def python() -> tuple[str, ...]:
    """Returns the beginning of a command, in place of `sys.executable`.

    The first call starts the server. Programs that run in forks use the server that forked them.
    """
    if os.environ.get("RL_REPLICATOR_TESTS_FORK", "1") == "0":
        return (sys.executable,)
    if client.ADDRESS not in os.environ:
        _start()
    return (sys.executable, "-IS", client.__file__, os.environ[client.ADDRESS])


def program(process: subprocess.Popen) -> int:
    """Returns a program's process id, for signals that should not go through its client.

    Args:
      process: started by a command that begins with `python()`.

    Raises:
      TimeoutError: if no program has begun.
    """
    if os.environ.get("RL_REPLICATOR_TESTS_FORK", "1") == "0":
        return process.pid
    path = Path(os.environ[client.ADDRESS]).with_name(str(process.pid))
    deadline = time.monotonic() + 60
    while not path.is_symlink():
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {process.pid} has not begun a program within 60 s")
        time.sleep(0.01)
    return int(os.readlink(path))


def _start() -> None:
    if (folder := os.environ.get(_SHARED)) is not None:
        address = Path(folder) / "socket"
        with (Path(folder) / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not address.exists():
                with (Path(folder) / _PIPE).open("rb") as pipe:
                    _launch(address, pipe)
    else:
        directory = tempfile.TemporaryDirectory(prefix="forked-")
        address = Path(directory.name) / "socket"
        server = _launch(address, subprocess.PIPE)  # It ends when this pipe is closed.

        def stop() -> None:
            server.kill()
            server.wait()
            directory.cleanup()

        atexit.register(stop)
    os.environ[client.ADDRESS] = str(address)


def _launch(address: Path, stdin: Any) -> subprocess.Popen:
    """Starts a server, and waits until its socket exists."""
    # Not isolated by options such as -I: programs pass their interpreter's options on to the
    # programs that they start.
    isolated = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(_HERE), str(address)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        env={**isolated, "TF_CPP_MIN_LOG_LEVEL": "3"},
        start_new_session=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"listening\n"  # Clients wait for its imports themselves.
    _servers.append(server)
    return server
