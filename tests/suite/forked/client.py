"""Stands for a program that runs in a fork of the server: `python -IS client.py ADDRESS ARGUMENTS`.

It is run by path and imports little, so that it costs only some milliseconds. Without a server, or
with options that the server does not support, it becomes a new interpreter.
"""

import os
import resource
import select
import signal
import socket
import sys

ADDRESS = "RL_REPLICATOR_TESTS_FORK_SERVER"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_NUMBER = 8  # Bytes per number in messages.


def main(address: str, arguments: list[str]) -> None:
    """Runs a program and ends as it does."""
    os.environ[ADDRESS] = address  # For programs that start others.
    connection = _connect(address) if _is_known(arguments) else None
    if connection is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    pending: list[int] = []
    pids: list[int] = []

    def forward(number: int, frame: object) -> None:
        pending.append(number)
        while pids and pending:
            _send_signal(pids[0], pending.pop(0))

    # A signal that arrives just before a blocking call would only be handled after it: this pipe
    # wakes `_receive`.
    wake, waker = os.pipe()
    for end in (wake, waker):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waker)
    for number in _FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, forward)
    message = repr((arguments, os.getcwd(), dict(os.environ))).encode()
    socket.send_fds(connection, [len(message).to_bytes(_NUMBER, "big")], [0, 1, 2])
    connection.sendall(message)
    pids.append(_receive(connection, wake))
    for fd in (0, 1, 2):
        os.close(fd)  # Readers must see the end of the streams when the program ends.
    while pending:
        _send_signal(pids[0], pending.pop(0))
    _end(_receive(connection, wake))


def _is_known(arguments: list[str]) -> bool:
    if not arguments or arguments[0] in ("-c", "-m"):
        return len(arguments) > 1
    return not arguments[0].startswith("-")


def _connect(address: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        return None
    return connection


def _receive(connection: socket.socket, wake: int) -> int:
    data = b""
    while len(data) < _NUMBER:
        ready, _, _ = select.select([connection, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        if connection not in ready:
            continue
        more = connection.recv(_NUMBER - len(data))
        if not more:
            os._exit(1)  # The server has ended, and the program with it.
        data += more
    return int.from_bytes(data, "big")


def _send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # It has ended; importing contextlib would cost milliseconds at each start.


def _end(wait_status: int) -> None:
    """Ends with the program's exit status, or by the signal that ended it."""
    status = os.waitstatus_to_exitcode(wait_status)
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
