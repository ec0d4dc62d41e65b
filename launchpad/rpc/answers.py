"""What a server remembers of the calls it has run, so that none runs twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures

from launchpad.rpc.credentials import Ticket

# Larger answers are not kept: a thousand actors would hold a thousand copies of the weights.
MAX_BYTES = 1 << 20
# A client that was silent for so many seconds has given up all its calls.
_FORGET_SECS = 3600.0
_FORGET_ABOVE = 1024


class AnsweredError(Exception):
    """The client of this call has its answer already; nobody waits for another one."""


class _Client:
    def __init__(self) -> None:
        self.num_answered = 0
        self.calls: dict[int, futures.Future[bytes]] = {}
        self.heard_at = time.monotonic()


class Answers:
    """Runs every call once, however often it arrives while its client waits.

    A client repeats a call whose connection broke. The repetition waits for the first run, or gets
    its answer. An answer is dropped when the client confirms it in the ticket of a later call.

    Calls with answers over `MAX_BYTES` run again when they are repeated after they have ended: a
    method with a large result should be one that only reads.
    """

    def __init__(self) -> None:
        self._clients: dict[bytes, _Client] = {}
        self._lock = threading.Lock()

    def get(self, ticket: Ticket, run: Callable[[], bytes]) -> bytes:
        """Returns the answer of a call; runs it if it is new.

        Args:
          ticket: The ticket of the call, verified.
          run: Computes the encoded answer; never raises.

        Raises:
          AnsweredError: the client has confirmed the answer of this call before.
        """
        with self._lock:
            client = self._clients.get(ticket.client_id)
            if client is None:
                self._forget_silent()
                client = self._clients[ticket.client_id] = _Client()
            client.heard_at = time.monotonic()
            if ticket.num_answered > client.num_answered:
                client.num_answered = ticket.num_answered
                for number in [n for n in client.calls if n <= ticket.num_answered]:
                    del client.calls[number]
            if ticket.number <= client.num_answered:
                raise AnsweredError
            answer = client.calls.get(ticket.number)
            is_new = answer is None
            if answer is None:
                answer = client.calls[ticket.number] = futures.Future()
        if not is_new:
            return answer.result()
        found = run()
        answer.set_result(found)
        if len(found) > MAX_BYTES:
            with self._lock:
                client.calls.pop(ticket.number, None)
        return found

    def _forget_silent(self) -> None:
        if len(self._clients) < _FORGET_ABOVE:
            return
        limit = time.monotonic() - _FORGET_SECS
        self._clients = {
            name: client
            for name, client in self._clients.items()
            if client.heard_at > limit or not all(call.done() for call in client.calls.values())
        }
