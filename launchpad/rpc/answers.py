"""Keeps the answers to a server's calls, so that no call runs twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures

from launchpad.rpc.credentials import Ticket

# Larger answers are not kept: a thousand actors would mean a thousand copies of the weights.
MAX_BYTES = 1 << 20
# Limit of all kept answers together; the oldest are dropped first.
MAX_KEPT_BYTES = 64 << 20
# Overhead of an answer besides its own bytes.
_BYTES_BESIDE = 1024
# A client that was silent for this many seconds is assumed to have given up all its calls: no
# `retry_secs` should be longer. What is kept meanwhile is bounded by `MAX_KEPT_BYTES`.
FORGET_SECS = 3600.0


class AnsweredError(Exception):
    """The client already has the answer to this call, and does not wait for another one."""


class _Client:
    """What is known of a client.

    Attributes:
      num_answered: All its calls up to this number have been answered, except `open_calls`.
      open_calls: The calls up to `num_answered` that still wait.
      calls: The answers that are kept or being computed, by the number of the call.
      heard_at: Monotonic time of its last call, or of the last answer to it.
    """

    def __init__(self) -> None:
        self.num_answered = 0
        self.open_calls: set[int] = set()
        self.calls: dict[int, futures.Future[bytes]] = {}
        self.heard_at = 0.0

    def has_answer_of(self, number: int) -> bool:
        """Returns whether the client has confirmed the answer to a call."""
        return number <= self.num_answered and number not in self.open_calls

    def confirm(self, ticket: Ticket) -> list[int]:
        """Records what a ticket confirms; returns the numbers of the calls that can be dropped."""
        # Tickets arrive in any order. A call still waits only if it does according to all of them.
        self.open_calls = {
            number
            for number in self.open_calls.union(ticket.open_calls)
            if not self.has_answer_of(number)
            and (number > ticket.num_answered or number in ticket.open_calls)
        }
        self.num_answered = max(self.num_answered, ticket.num_answered)
        return [number for number in self.calls if self.has_answer_of(number)]


class Answers:
    """Runs every call once, however often it arrives while its client waits.

    A client repeats a call whose connection broke. The repetition waits for the first run, or gets
    its answer. An answer is dropped when the client confirms it in the ticket of a later call, and
    an hour after the last call of its client.

    Calls with answers over `MAX_BYTES` run again when they are repeated after they have ended: a
    method with a large result should only read. So do calls whose answers were dropped because
    newer ones take `MAX_KEPT_BYTES`.
    """

    def __init__(self) -> None:
        self._clients: dict[bytes, _Client] = {}
        # Sizes of the answers that are kept, the oldest first, by client and number.
        self._kept: dict[tuple[bytes, int], int] = {}
        self._kept_bytes = 0
        self._forget_at = 0.0
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
            now = time.monotonic()
            self._forget_silent(now)
            client = self._clients.get(ticket.client_id)
            if client is None:
                client = self._clients[ticket.client_id] = _Client()
            client.heard_at = now
            for number in client.confirm(ticket):
                self._drop(ticket.client_id, number)
            if client.has_answer_of(ticket.number):
                raise AnsweredError
            answer = client.calls.get(ticket.number)
            is_new = answer is None
            if answer is None:
                answer = client.calls[ticket.number] = futures.Future()
        if not is_new:
            return answer.result()
        found = run()
        answer.set_result(found)
        with self._lock:
            if client.calls.get(ticket.number) is answer:  # It was not dropped meanwhile.
                client.heard_at = time.monotonic()  # The client may lose the answer from now on.
                self._keep(ticket, len(found))
        return found

    def _keep(self, ticket: Ticket, size: int) -> None:
        self._kept[ticket.client_id, ticket.number] = size + _BYTES_BESIDE
        self._kept_bytes += size + _BYTES_BESIDE
        if size > MAX_BYTES:
            self._drop(ticket.client_id, ticket.number)
        while self._kept_bytes > MAX_KEPT_BYTES:
            self._drop(*next(iter(self._kept)))

    def _drop(self, client_id: bytes, number: int) -> None:
        del self._clients[client_id].calls[number]
        self._kept_bytes -= self._kept.pop((client_id, number), 0)

    def _forget_silent(self, now: float) -> None:
        if now < self._forget_at:
            return
        self._forget_at = now + FORGET_SECS / 10
        for name, client in list(self._clients.items()):
            is_silent = client.heard_at <= now - FORGET_SECS
            if is_silent and all(call.done() for call in client.calls.values()):
                for number in list(client.calls):
                    self._drop(name, number)
                del self._clients[name]
