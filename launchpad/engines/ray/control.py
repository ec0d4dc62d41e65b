"""Control channels between the launcher and its nodes on other machines."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import threading
import uuid
from collections.abc import Callable

from launchpad.engines import channel as lp_channel
from rl_replicator.processes import ports

# What a node sends first: a random challenge, its own key, its process id, and the signature of
# these. The launcher answers with its signature of the challenge. The secret itself is never sent.
_HELLO = struct.Struct("<16s16sI")
_SIGNATURE_BYTES = 32
_CONNECT_SECS = 10.0
# The kernel accepts connections for a launcher that gets no CPU time: its answer takes longer.
_HELLO_SECS = 60.0

OnCall = Callable[[lp_channel.Channel, int], object]


class Switchboard:
    """Accepts the nodes' connections to the launcher.

    Nothing is unpickled from a process that does not have the secret.
    """

    def __init__(self, host: str, secret: bytes):
        self._secret = secret
        self._expected: dict[bytes, OnCall] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server((host, 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def expect(self, on_call: OnCall) -> bytes:
        """Returns a key; `on_call(channel, process id)` is called for the node that presents it."""
        key = uuid.uuid4().bytes
        with self._lock:
            self._expected[key] = on_call
        return key

    def close(self) -> None:
        """Accepts no more connections."""
        with contextlib.suppress(OSError):  # Wakes accept() up.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_HELLO_SECS)
            hello = connection.recv(_HELLO.size + _SIGNATURE_BYTES, socket.MSG_WAITALL)
            said, signature = hello[: _HELLO.size], hello[_HELLO.size :]
            if hmac.compare_digest(signature, _sign(self._secret, b"node", said)):
                challenge, key, pid = _HELLO.unpack(said)
                with self._lock:
                    on_call = self._expected.pop(key, None)
                if on_call is not None:
                    connection.sendall(_sign(self._secret, b"launcher", challenge))
                    connection.settimeout(None)
                    ports.give_up_silence(connection)
                    on_call(lp_channel.Channel(connection), pid)
                    return
        except OSError:
            pass
        connection.close()


def call(address: tuple[str, int], secret: bytes, key: bytes) -> lp_channel.Channel:
    """Connects a node to the launcher.

    Raises:
      ConnectionError: it can't be reached, it does not answer, or another process does.
    """
    try:
        connection = socket.create_connection(address, _CONNECT_SECS)
    except OSError as error:
        raise ConnectionError(
            f"the launcher at {address[0]}:{address[1]} can't be reached from "
            f"{socket.gethostname()}: {error}; nodes must be able to reach all ports of its machine"
        ) from error
    challenge = secrets.token_bytes(16)
    hello = _HELLO.pack(challenge, key, os.getpid())
    connection.settimeout(_HELLO_SECS)
    try:
        connection.sendall(hello + _sign(secret, b"node", hello))
        answer = connection.recv(_SIGNATURE_BYTES, socket.MSG_WAITALL)
    except TimeoutError:
        connection.close()
        raise ConnectionError(
            f"the launcher at {address[0]}:{address[1]} did not answer in {_HELLO_SECS:g} s"
        ) from None
    except OSError:
        answer = b""
    if not hmac.compare_digest(answer, _sign(secret, b"launcher", challenge)):
        connection.close()
        raise ConnectionError(
            f"the process at {address[0]}:{address[1]} is not the launcher of this program"
        )
    connection.settimeout(None)
    ports.give_up_silence(connection)
    return lp_channel.Channel(connection)


def _sign(secret: bytes, role: bytes, content: bytes) -> bytes:
    return hmac.digest(secret, role + content, "sha256")
