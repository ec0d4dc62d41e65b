"""Python programs in forks of a process that has imported TensorFlow already.

An import of TensorFlow takes three CPU seconds, and the tests start some hundred programs that need
it. `PYTHON` stands in their commands where `sys.executable` would: the program runs in a fork of a
server that has imported third-party packages, and nothing of this project. It has its own process
group, arguments, environment, working directory, streams and exit status; signals reach it, and it
ends with the process that stands for it.

Three things differ from a new interpreter. The modules of `fork_server.PRELOADED` are there
already, and AutoGraph has translated those functions of Sonnet that most networks call, so a test
of imports, or of what they print, starts `sys.executable`. Hashes of strings have one seed in all
programs of a server: a group of processes that must not depend on it has a member that
`sys.executable` runs. And the program has another process id than the process that the test
started: `program` returns it.

The processes of a run of the suite share one server, which the first that needs it starts. With
`--record`, and outside of the suite, each has one of its own.

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
# Names the folder of a server that processes share.
_SHARED = "RL_REPLICATOR_TESTS_FORK_SHARED"
# A pipe in this folder, at whose end the server ends.
_PIPE = "pipe"
_servers: list[subprocess.Popen] = []


@contextlib.contextmanager
def shared(folder: Path) -> Iterator[dict[str, str]]:
    """Has processes share one server, which ends with the context, or with this process.

    Args:
      folder: to make.

    Yields:
      Environment variables for the processes.
    """
    folder.mkdir()
    os.mkfifo(folder / _PIPE)
    end = os.open(folder / _PIPE, os.O_RDWR)  # With a reader: a writer alone would wait for one.
    try:
        yield {_SHARED: str(folder)}
    finally:
        os.close(end)


def python() -> tuple[str, ...]:
    """Returns the beginning of a command, in place of `sys.executable`.

    Starts the server at the first call. Programs that run in forks use the server that they come
    from.
    """
    if os.environ.get("RL_REPLICATOR_TESTS_FORK", "1") == "0":
        return (sys.executable,)
    if client.ADDRESS not in os.environ:
        _start()
    return (sys.executable, "-IS", client.__file__, os.environ[client.ADDRESS])


def program(process: subprocess.Popen) -> int:
    """Returns the process id of a program, to send it a signal that does not wait to be passed on.

    Args:
      process: what a command that begins with `python()` has started.

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
        server = _launch(address, subprocess.PIPE)  # It ends when this pipe does.

        def stop() -> None:
            server.kill()
            server.wait()
            directory.cleanup()

        atexit.register(stop)
    os.environ[client.ADDRESS] = str(address)


def _launch(address: Path, stdin: Any) -> subprocess.Popen:
    """Starts a server, and waits until it listens."""
    # Without options such as -I: programs hand their interpreter's options on to those they start.
    isolated = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(_HERE), str(address)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        env={**isolated, "TF_CPP_MIN_LOG_LEVEL": "3"},
        start_new_session=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"listening\n"  # Clients wait for its imports.
    _servers.append(server)
    return server
