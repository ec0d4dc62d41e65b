"""The control channel between the launcher and one of its processes.

Messages are small pickled tuples over a socket pair; either side ends when the other is gone.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from typing import Any

_SIZE = struct.Struct("<I")
_SEND_TIMEOUT = struct.pack("ll", 2, 0)  # struct timeval: seconds, microseconds.


class Channel:
    """Sends and receives messages. Sending is thread-safe; one thread may receive."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        # A frozen peer must not freeze this side.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        self._lock = threading.Lock()
        self._is_broken = False

    def send(self, *message: Any) -> bool:
        """Sends `message`; returns False if the peer is gone or does not read."""
        data = pickle.dumps(message)
        with self._lock:
            if self._is_broken:
                return False
            try:
                self._connection.sendall(_SIZE.pack(len(data)) + data)
                return True
            except OSError:
                self._is_broken = True  # Half a message may be out.
                return False

    def receive(self) -> tuple[Any, ...] | None:
        """Returns the next message, waiting for it; None once the peer is gone."""
        header = self._read(_SIZE.size)
        data = self._read(_SIZE.unpack(header)[0]) if header else None
        return pickle.loads(data) if data else None

    def close(self) -> None:
        """Closes this end; the peer receives None."""
        self._connection.close()

    def _read(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self._connection.recv(size - len(data))
            except OSError:
                return None
            if not chunk:
                return None
            data += chunk
        return bytes(data)
