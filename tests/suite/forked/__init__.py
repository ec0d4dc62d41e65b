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

`RL_REPLICATOR_TESTS_FORK=0` in the environment makes every command start a new interpreter.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.suite.forked import client

_HERE = Path(__file__).parent
_SERVER = """
import sys
sys.path[0] = sys.argv[1]
import fork_server
fork_server.main(sys.argv[2])
"""
_servers: list[subprocess.Popen] = []


def python() -> tuple[str, ...]:
    """Returns the beginning of a command, in place of `sys.executable`.

    Starts the server of this process at the first call; it ends with this process. Programs that
    run in forks use the server that they come from.
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
    directory = tempfile.TemporaryDirectory(prefix="forked-")
    address = Path(directory.name) / "socket"
    # Without options such as -I: programs hand their interpreter's options on to those they start.
    isolated = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(_HERE), str(address)],
        stdin=subprocess.PIPE,  # It ends when this pipe does.
        stdout=subprocess.PIPE,
        env={**isolated, "TF_CPP_MIN_LOG_LEVEL": "3"},
        start_new_session=True,
    )
    assert server.stdin is not None and server.stdout is not None
    assert server.stdout.readline() == b"listening\n"  # Clients wait for its imports.
    _servers.append(server)
    os.environ[client.ADDRESS] = str(address)

    def stop() -> None:
        server.kill()
        server.wait()
        directory.cleanup()

    atexit.register(stop)
