"""The control channel between the launcher and one of its processes.

Messages are small pickled tuples over a socket; either side ends when the other is gone. A side
that is only suspended, such as a launcher after Ctrl-Z, receives all messages when it resumes.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from typing import Any

_SIZE = struct.Struct("<I")

# How long the launcher waits for a node that does not read, in seconds: a frozen node must not
# freeze the program. Nodes wait for as long as the launcher lives.
LAUNCHER_PATIENCE_SECS = 2.0


class Channel:
    """Sends and receives messages. Sending is thread-safe; one thread may receive."""

    def __init__(self, connection: socket.socket, patience_secs: float | None = None):
        """Takes over a connected socket.

        Args:
          connection: The socket.
          patience_secs: How long `send` waits for a peer that does not read; None for as long as
            the peer lives. Data not sent by then is sent before the next message, or by `flush`.
        """
        self._connection = connection
        if patience_secs is not None:
            secs, part = divmod(patience_secs, 1)  # struct timeval: seconds, microseconds.
            limit = struct.pack("ll", int(secs), int(part * 1e6))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._lock = threading.Lock()
        self._unsent = bytearray()
        # MSG_DONTWAIT after a send has timed out, until the peer reads again; 0 otherwise.
        self._haste = 0

    def send(self, *message: Any) -> bool:
        """Sends `message`; returns False if the peer is gone."""
        with self._lock:
            self._unsent += _packed(message)
            return self._send_rest(0)

    def send_or_drop(self, *message: Any) -> bool:
        """Sends `message` if the peer is reading, and drops it otherwise.

        For heartbeats, which must not pile up while the peer is suspended.

        Returns:
          False if the peer is gone.
        """
        if not self._lock.acquire(blocking=False):
            return True  # Another message is waiting for the peer.
        try:
            if not self._send_rest(socket.MSG_DONTWAIT):
                return False
            if self._unsent:
                return True
            data = _packed(message)
            self._unsent += data
            is_there = self._send_rest(socket.MSG_DONTWAIT)
            if len(self._unsent) == len(data):
                self._unsent.clear()
            return is_there
        finally:
            self._lock.release()

    def flush(self) -> None:
        """Sends the unsent rest of earlier messages, as far as the peer reads it. Never waits."""
        if self._lock.acquire(blocking=False):
            try:
                self._send_rest(socket.MSG_DONTWAIT)
            finally:
                self._lock.release()

    def receive(self) -> tuple[Any, ...] | None:
        """Returns the next message, waiting for it; None once the peer is gone."""
        header = self._read(_SIZE.size)
        data = self._read(_SIZE.unpack(header)[0]) if header else None
        return pickle.loads(data) if data else None

    def end_input(self) -> None:
        """Lets `receive` return what has arrived, and None afterwards, as if the peer were gone."""
        with contextlib.suppress(OSError):  # It is closed, or the peer is gone.
            self._connection.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Closes this end; the peer receives None."""
        self._connection.close()

    def _send_rest(self, flags: int) -> bool:
        """Sends as much of `_unsent` as the peer takes; the caller must hold the lock.

        Returns:
          False if the peer is gone.
        """
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent, flags | self._haste)]
                self._haste = 0
        except BlockingIOError:
            if not flags:
                self._haste = socket.MSG_DONTWAIT
        except OSError:
            self._unsent.clear()
            return False
        return True

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


def _packed(message: tuple[Any, ...]) -> bytes:
    data = pickle.dumps(message)
    return _SIZE.pack(len(data)) + data
