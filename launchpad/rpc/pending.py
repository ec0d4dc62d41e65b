"""Calls that return futures: they need no threads of their own, however many there are."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc

from launchpad.rpc import connection, credentials
from launchpad.rpc import link as rpc_link

# How long one round waits for the server's address, and for its connection, in seconds.
_ROUND_SECS = 0.2


@dataclasses.dataclass
class _Entry:
    call: connection.Call
    unpack: Callable[[bytes], Any]
    result: futures.Future[Any]
    was_sent: bool = False
    was_signed_again: bool = False


class PendingCalls:
    """Sends calls without waiting for them.

    Calls whose server cannot be reached are queued for one thread, which sends them again when it
    can, and fails those whose deadline has passed.
    """

    def __init__(self, owner: connection.Connection):
        """Starts no thread yet.

        Args:
          owner: Finds the link to the server. Answers are unpacked with its runtime, in any thread.
        """
        self._connection = owner
        self._waiting: list[_Entry] = []
        self._lock = threading.Lock()
        self._has_thread = False

    def submit(
        self,
        call: connection.Call,
        link: rpc_link.Link | None,
        unpack: Callable[[bytes], Any],
    ) -> futures.Future[Any]:
        """Sends a call on `link`, or once there is one; returns the future of its result.

        Cancelling the future cancels the call: a handler that has not begun never runs.

        Args:
          call: What to send.
          link: The link to the server, or None.
          unpack: Turns an encoded answer into the result of the call, or raises its exception.
        """
        entry = _Entry(call, unpack, futures.Future())
        entry.result.add_done_callback(_tell_of_cancel)
        if link is None:
            self._wait(entry)
        else:
            self._send(entry, link)
        return entry.result

    def _send(self, entry: _Entry, link: rpc_link.Link) -> None:
        entry.was_sent = True
        ticket = entry.call.ticket()
        try:
            rpc = link.start(entry.call.request, ticket, entry.call.remaining())
        except ValueError:  # The link was closed meanwhile.
            self._wait(entry)
            return
        entry.result.add_done_callback(lambda done: rpc.cancel() if done.cancelled() else None)
        rpc.add_done_callback(lambda rpc: self._finish(entry, link, ticket, rpc))

    def _finish(
        self, entry: _Entry, link: rpc_link.Link, ticket: credentials.Ticket, rpc: Any
    ) -> None:
        if entry.result.cancelled():
            entry.call.close()
            return
        if not entry.was_signed_again and link.learn_nonce(rpc):
            entry.was_signed_again = True
            self._send(entry, link)
            return
        with self._connection.as_client():  # This may be any thread: gRPC's, or that of the caller.
            try:
                if rpc.code() != grpc.StatusCode.OK:
                    raise rpc
                answer = link.verified(rpc.result(), rpc, ticket)
                entry.call.answered()
            except (grpc.RpcError, rpc_link.UnverifiedAnswerError) as error:
                try:
                    entry.call.failed(link, error)
                except Exception as reason:
                    self._settle(entry, reason)
                else:
                    self._wait(entry)
            else:
                self._settle(entry, answer)

    def _settle(self, entry: _Entry, outcome: bytes | Exception) -> None:
        entry.call.close()
        with contextlib.suppress(futures.InvalidStateError):  # Cancelled by its owner meanwhile.
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                value = entry.unpack(outcome)
            except BaseException as error:  # The future carries it to whoever waits.
                entry.result.set_exception(error)
            else:
                entry.result.set_result(value)

    def _wait(self, entry: _Entry) -> None:
        with self._lock:
            self._waiting.append(entry)
            if self._has_thread:
                return
            self._has_thread = True
        threading.Thread(target=self._resend, name="courier-resend", daemon=True).start()

    def _resend(self) -> None:
        """Sends the waiting calls until there are none."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._has_thread = False
                    return
            try:
                link = self._connection.find_link(_ROUND_SECS)
                failure = None
            except Exception as error:  # For example, the program is stopping.
                link, failure = None, error
            is_ready = link is not None and link.is_ready(_ROUND_SECS)
            with self._lock:
                batch, self._waiting = self._waiting, []
            for entry in batch:
                self._go_on(entry, link, is_ready, failure)
            if link is None or not is_ready:
                time.sleep(_ROUND_SECS)

    def _go_on(
        self,
        entry: _Entry,
        link: rpc_link.Link | None,
        is_ready: bool,
        failure: Exception | None,
    ) -> None:
        if entry.result.cancelled():
            entry.call.close()
        elif failure is not None:
            self._settle(entry, failure)
        elif link is not None and (is_ready or not entry.was_sent):
            if is_ready:
                entry.call.reconnected()
            self._send(entry, link)
        else:
            try:
                entry.call.check()
            except Exception as reason:
                self._settle(entry, reason)
            else:
                self._wait(entry)


def _tell_of_cancel(done: futures.Future[Any]) -> None:
    """Wakes waits for several futures: `cancel()` itself wakes only waits for this future."""
    if done.cancelled():
        done.set_running_or_notify_cancel()
