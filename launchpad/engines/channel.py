"""The control channel between the launcher and a node in another process, and its launcher's end.

Messages are small pickled tuples over a socket; either side ends when the other is gone. A side
that is only suspended, such as a launcher after Ctrl-Z, receives all messages when it resumes.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import socket
import struct
import threading
import time
from typing import Any

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from rl_replicator.processes import output

_SIZE = struct.Struct("<I")

# How long to wait for the last messages of a process that has ended and for the end of its channel,
# in seconds. Both are there immediately, unless its machine was lost or an orphan has inherited the
# channel.
_ARRIVAL_SECS = 1.0
# How long to read what has arrived by then, in seconds: this process may get little CPU time.
_READ_SECS = 30.0
# The threads and exit handlers of a failed node have this long to end, in seconds.
_FAILED_SECS = 5.0


class Channel:
    """Sends and receives messages. Sending is thread-safe; one thread may receive."""

    def __init__(self, connection: socket.socket):
        """Takes over a connected socket."""
        self._connection = connection
        self._lock = threading.Lock()
        self._unsent = bytearray()  # Left by a thread that was interrupted while it sent.

    def send(self, *message: Any) -> bool:
        """Sends `message`, waiting while the peer does not read; returns False if it is gone."""
        data = pickle.dumps(message)
        with self._lock:
            self._unsent += _SIZE.pack(len(data)) + data
            try:
                while self._unsent:
                    del self._unsent[: self._connection.send(self._unsent)]
            except OSError:
                self._unsent.clear()
                return False
        return True

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
        """Closes this end, also for threads that wait; the peer receives None."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
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


class RemoteWorker(lp_member.Worker):
    """A node that is controlled over a control channel; see `node_process.Child`.

    An engine starts the process, calls `attach()` with the channel to it, and `report_end()` once
    the process is gone. Threads of its own send and receive: neither a node that is not attached
    yet nor one that does not read holds up the supervisor.
    """

    def __init__(self, member: lp_member.Member, supervisor: lp_supervisor.Supervisor):
        self.name = member.name
        self._supervisor = supervisor
        self._channel: Channel | None = None
        self._reader: threading.Thread | None = None
        self._outbox: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._record: errors.ExceptionRecord | None = None
        self._has_finished = False
        self._heard_at: float | None = None
        self._has_ended = False

    @property
    def silent_secs(self) -> float:
        """Seconds since the node's last sign of life; 0 before it is attached."""
        return 0.0 if self._heard_at is None else time.monotonic() - self._heard_at

    @property
    def is_attached(self) -> bool:
        """True once the process is connected."""
        return self._channel is not None

    def attach(self, channel: Channel) -> None:
        """Starts to communicate with the node, and lets its code begin."""
        self._channel = channel
        self._heard_at = time.monotonic()
        # Set first: another thread may report the node's end as soon as its code has begun.
        self._reader = self._thread(self._read, "control")
        self._thread(self._write, "outbox")

    def notify_stop(self) -> None:
        """Asks the node to leave its `run()`."""
        self._outbox.put(("stop",))

    def release(self) -> None:
        """Tells the node that its server is no longer needed."""
        self._outbox.put(("release",))

    def send_address(self, key: str, address: str) -> None:
        """Sends the node the address ("host:port") at which the owner of `key` serves."""
        self._outbox.put(("address", key, address))

    def end_frozen(self, secs: float) -> None:
        """Kills a process that has shown no sign of life for `secs` seconds."""
        self._heard_at = None  # Until the supervisor has handled the end, it is not silent again.
        # Set first: whoever waits for the process reports its end, too.
        self._record = self._record or errors.ExceptionRecord(
            errors.PROCESS_DIED, f"no sign of life for {secs:.0f} s; killed", "", stuck_secs=secs
        )
        self._kill_frozen()
        # This does not wait for the process to end, which is never reported if its machine is lost.
        # It needs a thread, because it waits for the last messages and the supervisor calls it.
        self._thread(self.report_end, "end", self._record)

    def _kill_frozen(self) -> None:
        self.kill()

    def close(self) -> None:
        """Closes the control channel."""
        self._outbox.put(None)
        if self._channel is not None:
            self._channel.close()

    def report_end(self, death: errors.ExceptionRecord | None) -> None:
        """Tells the supervisor that the process is gone, which ignores all but the first report.

        Args:
          death: The cause as seen from outside, unless the node has reported its failure or its
            normal end; None for the end of one that was called off.
        """
        self._has_ended = True
        if self._reader is not None:
            self._reader.join(_ARRIVAL_SECS)
            if self._reader.is_alive() and self._channel is not None:
                self._channel.end_input()
                self._reader.join(_READ_SECS)
        if self._record is None and not self._has_finished:
            self._record = death
        self._supervisor.post(self, "ended", self._record)

    def _thread(self, target: Any, role: str, *args: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name=f"{self.name} {role}", daemon=True)
        thread.start()
        return thread

    def _write(self) -> None:
        assert self._channel is not None
        message: tuple[Any, ...] | None = ("begin",)
        while message is not None and self._channel.send(*message):
            message = self._outbox.get()

    def _read(self) -> None:
        assert self._channel is not None
        while (message := self._channel.receive()) is not None:
            self._heard_at = time.monotonic()
            kind, *details = message
            if kind == "heartbeat":
                continue
            if kind == "failed":
                # It is treated as failed, and restarted, only when its process has ended, in which
                # a thread of the node may go on.
                self._thread(self._end_failed, "linger")
                kind = "failing"
            if kind == "failing":
                (self._record,) = details
            self._has_finished |= message == ("state", lp_runtime.FINISHED)
            self._supervisor.post(self, kind, *details)

    def _end_failed(self) -> None:
        time.sleep(_FAILED_SECS)
        if not self._has_ended:
            self.kill()


def death(code: int) -> errors.ExceptionRecord:
    """Describes the end of a process by its exit status, or the negative number of its signal."""
    detail = f"the process {output.describe_end(code)}"
    return errors.ExceptionRecord(errors.PROCESS_DIED, detail, "")
