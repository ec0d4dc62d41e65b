"""Control channels between the launcher and its nodes on Ray."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from launchpad.engines import channel as lp_channel
from launchpad.nodes import tunnel
from launchpad.rpc import tls

_CONNECT_SECS = 10.0
# The kernel accepts connections for a launcher that gets no CPU time: its answer takes longer.
_HELLO_SECS = 60.0

OnCall = Callable[[lp_channel.Channel, int, str], object]


class Switchboard:
    """Accepts the nodes' connections to the launcher.

    It listens at a Unix socket of this user. Nodes on other machines reach it through a tunnel,
    which demands a certificate of the program.

    Attributes:
      address: "unix:PATH" or "host:port".
    """

    def __init__(self, host: str, secret: bytes):
        self._expected: dict[bytes, OnCall] = {}
        self._lock = threading.Lock()
        self.address = tls.socket_address(secrets.token_hex(16))
        self._path = Path(self.address.removeprefix("unix:"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(128)
        if host != tls.LOOPBACK:
            self.address = f"{host}:{tunnel.serve(host, 0, secret, self._path)}"
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def expect(self, on_call: OnCall) -> bytes:
        """Returns a key; `on_call(channel, process id, machine)` is called for who presents it."""
        key = secrets.token_bytes(16)
        with self._lock:
            self._expected[key] = on_call
        return key

    def close(self) -> None:
        """Accepts no more connections."""
        with contextlib.suppress(OSError):  # Wakes accept() up.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        connection.settimeout(_HELLO_SECS)
        channel = lp_channel.Channel(connection)
        # What a node sends first: its key, its process id, and Ray's id of its machine.
        key, *about = channel.receive() or (None,)
        with self._lock:
            on_call = self._expected.pop(key, None)
        if on_call is None or not channel.send("welcome"):
            channel.close()
            return
        connection.settimeout(None)
        on_call(channel, *about)


def call(address: str, secret: bytes, key: bytes, machine: str) -> lp_channel.Channel:
    """Connects a node to the launcher.

    Args:
      address: The address of the launcher's switchboard.
      secret: The secret of the program.
      key: What the switchboard expects.
      machine: Ray's id of this machine.

    Raises:
      ConnectionError: it can't be reached, it does not answer, or another process does.
    """
    connection = _connect(address, secret)
    connection.settimeout(_HELLO_SECS)
    channel = lp_channel.Channel(connection)
    if not channel.send(key, os.getpid(), machine) or channel.receive() is None:
        channel.close()
        raise ConnectionError(
            f"the process at {address} is not the launcher of this program, or has not answered in "
            f"{_HELLO_SECS:g} s"
        )
    connection.settimeout(None)
    return channel


def _connect(address: str, secret: bytes) -> socket.socket:
    try:
        if address.startswith("unix:"):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(address.removeprefix("unix:"))
            return connection
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), _CONNECT_SECS).close()
        near, _, port = tunnel.connect(address, secret).rpartition(":")
        return socket.create_connection((near, int(port)), _CONNECT_SECS)
    except OSError as error:
        raise ConnectionError(
            f"the launcher at {address} can't be reached from {socket.gethostname()}: {error}; "
            "nodes must be able to reach all ports of its machine"
        ) from error
