"""A node between a server and many clients that caches answers."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from concurrent import futures
from typing import Any

from launchpad import address as lp_address
from launchpad import runtime as lp_runtime
from launchpad.nodes import base, courier, dereference, python
from launchpad.rpc import client as rpc_client
from launchpad.rpc import wire

# An answer that was not requested during this many refreshes is dropped.
_UNUSED_REFRESHES = 10


@dataclasses.dataclass
class _CacheEntry:
    """One call and its last answer.

    Attributes:
      call: The pending call to the server, or None; all requests for its answer wait for it.
      answer: The encoded answer; empty before the first.
      fetched_at: Monotonic time of the answer.
      asked_at: Monotonic time of the last request for it.
    """

    call: futures.Future[bytes] | None = None
    answer: bytes = b""
    fetched_at: float = float("-inf")
    asked_at: float = 0.0


class Cacher:
    """Answers calls from memory. Requests and answers stay encoded; nothing is unpickled."""

    def __init__(
        self,
        client: rpc_client.CourierClient,
        runtime: lp_runtime.NodeRuntime,
        refresh_interval_secs: float,
        stale_after_secs: float,
    ):
        self._client = client
        self._runtime = runtime
        self._refresh_interval_secs = refresh_interval_secs
        self._stale_after_secs = stale_after_secs
        self._entries: dict[bytes, _CacheEntry] = {}
        self._lock = threading.Lock()

    def answer(self, request: bytes) -> bytes:
        """Returns an answer that is at most `stale_after_secs` old, or waits for a new one."""
        with self._lock:
            entry = self._entries.setdefault(request, _CacheEntry())
            entry.asked_at = time.monotonic()
            if entry.answer and entry.asked_at - entry.fetched_at <= self._stale_after_secs:
                return entry.answer
            call = self._ask(request, entry)
        return call.result()

    def refresh(self) -> None:
        """Sends the calls that clients made recently to the server again."""
        now = time.monotonic()
        with self._lock:
            unused_secs = _UNUSED_REFRESHES * max(
                self._refresh_interval_secs, self._stale_after_secs
            )
            self._entries = {
                request: entry
                for request, entry in self._entries.items()
                if now - entry.asked_at < unused_secs
            }
            for request, entry in self._entries.items():
                self._ask(request, entry)

    def _ask(self, request: bytes, entry: _CacheEntry) -> futures.Future[bytes]:
        """Returns the pending call to the server, or starts one; the caller must hold the lock."""
        call = entry.call  # Read once: the callback of an answer resets it without the lock.
        if call is not None:
            return call
        started = time.monotonic()
        entry.call = call = rpc_client.forward(self._client, request)
        call.add_done_callback(functools.partial(self._keep, entry, started))
        return call

    def _keep(self, entry: _CacheEntry, started: float, call: futures.Future[bytes]) -> None:
        """Stores an answer; takes no lock, because its thread may be one that holds the lock."""
        error = call.exception()
        if error is None:
            answer = call.result()
            if answer[:1] == wire.OK:  # An exception is passed on, but not cached.
                entry.answer, entry.fetched_at = answer, started
        elif not self._runtime.stop_event.is_set():
            # Old answers are valid until they are stale; then callers see the error themselves.
            lp_runtime.logger.warning("%s: not refreshed: %s", self._runtime.name, error)
        entry.call = None


class CacherNode(python.RunNode[courier.CourierHandle]):
    """Serves the methods of another CourierNode from memory.

    For calls with equal arguments, the server is called about once per `refresh_interval_ms`, or
    per `stale_after_ms` if that is shorter, however many clients there are. Use it for weights that
    many actors fetch.
    """

    def __init__(self, handle: base.Handle[Any], refresh_interval_ms: int, stale_after_ms: int):
        """Describes the node.

        Args:
          handle: The server whose answers are cached.
          refresh_interval_ms: Milliseconds between two refreshes.
          stale_after_ms: An older answer is not returned: the caller waits for a new one.

        Raises:
          ValueError: the times are not positive.
        """
        super().__init__()
        if refresh_interval_ms <= 0 or stale_after_ms <= 0:
            raise ValueError("refresh_interval_ms and stale_after_ms must be positive")
        self._handle = handle
        self._input_handles = [handle]
        self._refresh_interval_secs = refresh_interval_ms / 1000.0
        self._stale_after_secs = stale_after_ms / 1000.0
        self._address = lp_address.Address("cacher")
        self.allocate_address(self._address)

    def create_handle(self) -> courier.CourierHandle:
        """Returns a handle whose clients call the cache as if it were the server."""
        return self._track_handle(courier.CourierHandle(self._address))

    def run(self) -> None:
        """Serves answers from memory until the program ends."""
        runtime = lp_runtime.require_current()
        client = dereference.maybe_dereference(self._handle)
        cacher = Cacher(client, runtime, self._refresh_interval_secs, self._stale_after_secs)
        server = courier.make_server(runtime, self._address, {})
        server.bind_forward(cacher.answer)
        server.start()
        try:
            runtime.publish(self._address.key, server.address)
            runtime.set_state(lp_runtime.SERVING)
            while not runtime.stop_event.wait(self._refresh_interval_secs):
                cacher.refresh()
            runtime.release_event.wait()
        finally:
            server.stop()
