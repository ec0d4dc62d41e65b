"""A replay server in a separate process, which reports what it has used."""

import contextlib
import multiprocessing
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

from agents.agent import Agent
from rl_replicator.processes import ports

# Offset of `tcpi_bytes_acked` and `tcpi_bytes_received`, two uint64, in Linux' `struct tcp_info`.
_BYTES_OFFSET = 120
_INFO_SIZE = 256
# Importing TensorFlow takes at most this long on a busy machine.
_START_SECONDS = 300.0
_STOP_SECONDS = 5.0


class Usage(NamedTuple):
    """What the server has used since its start.

    Attributes:
      seconds: processor seconds.
      received: bytes that open connections have received.
      sent: bytes that open connections have sent.
    """

    seconds: float
    received: float
    sent: float


class ReplayProcess:
    """The agent's tables in a server process whose rate limiters never block.

    Attributes:
      address: the server's "host:port", known once the context is entered.
    """

    def __init__(self, agent: Agent, num_shards: int):
        """Starts the process; entering the context waits for it.

        Args:
          agent: makes the tables.
          num_shards: the replay servers of the run, of which this is one. The agent may accept its
            settings only for this number.
        """
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(agent, num_shards, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self.address = ""

    def __enter__(self) -> Self:
        """Waits for the server.

        Raises:
          RuntimeError: if it did not start.
        """
        try:
            self.address = f"localhost:{self._receive()}"
            ports.bypass_proxy(["localhost"])
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends the process."""
        self._end()

    def usage(self) -> Usage:
        """Returns what the server has used so far."""
        self._pipe.send(None)
        return self._receive()

    def _end(self) -> None:
        self._pipe.close()
        self._process.join(_STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _receive(self) -> Any:
        try:
            if self._pipe.poll(_START_SECONDS):
                return self._pipe.recv()
        except EOFError:
            pass
        raise RuntimeError("the replay server of the measurement did not answer")


def _serve(agent: Agent, num_shards: int, pipe: Connection) -> None:
    """Runs in the server's process until the other end of the pipe is closed."""
    import reverb  # Imports TensorFlow.

    tables = [
        table.replace(rate_limiter=reverb.rate_limiters.MinSize(1))
        for table in agent.make_tables(1, num_shards)
    ]
    server = reverb.Server(tables)
    with contextlib.suppress(EOFError, OSError):
        pipe.send(server.port)
        while True:
            pipe.recv()
            traffic = list(_traffic())
            received, sent = (sum(column) for column in zip(*traffic, strict=True))
            pipe.send(Usage(time.process_time(), received, sent))
    server.stop()


def _traffic() -> Iterator[tuple[int, int]]:
    """Yields the bytes that each TCP connection of this process has received and sent."""
    yield 0, 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
        except OSError:  # Closed meanwhile, or a socket of another kind.
            continue
        if len(info) >= _BYTES_OFFSET + 16:
            acknowledged, received = struct.unpack_from("=QQ", info, _BYTES_OFFSET)
            yield received, acknowledged
