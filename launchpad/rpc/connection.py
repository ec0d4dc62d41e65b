"""The connection of a client: finds the server, keeps a link to it, and repeats broken calls."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import secrets
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import grpc

from launchpad import address as lp_address
from launchpad import address_book as lp_address_book
from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.rpc import credentials, wire
from launchpad.rpc import link as rpc_link

logger = logging.getLogger("launchpad")

# Pause between two attempts to reach a server that does not answer, in seconds.
_PAUSE_SECS = 0.1
# Longest single wait for an address that is not published yet, in seconds.
_ADDRESS_SECS = 0.2

# The connections to each server, by the address book and the key of their target. One watcher per
# server notifies all of them. So short-lived clients leave nothing in the book, and their garbage
# collection, which may happen while this thread holds the book's lock, takes no lock.
_followers: weakref.WeakKeyDictionary[
    lp_address_book.AddressBook, dict[str, weakref.WeakSet[Connection]]
] = weakref.WeakKeyDictionary()
_followers_lock = threading.Lock()


class Connection:
    """Sends the calls of one client to wherever its server is now. Thread-safe.

    Attributes:
      timeout: Deadline of each call in seconds, or None.
      retry_secs: How long a call waits for a server that went away, in seconds.
      wait_for_ready: False if a call fails immediately when the server is not there.
      runtime: The runtime of the code that made the client, or of the launcher if the program was
        launched, or launched again, after that; None outside a program.
      was_reached: Whether the server has ever answered.
    """

    def __init__(
        self,
        target: str | lp_address.Address,
        timeout: float | None,
        retry_secs: float,
        wait_for_ready: bool,
        compress: bool,
    ):
        """Connects only at the first call. For the arguments see `CourierClient`."""
        self.timeout = timeout
        self.retry_secs = retry_secs
        self.wait_for_ready = wait_for_ready
        self.was_reached = False
        self._link: rpc_link.Link | None = None
        self._target = target
        self._compress = compress
        self.runtime = lp_runtime.current() if isinstance(target, str) else target.runtime()
        self._lock = threading.Lock()
        self._client_id = secrets.token_bytes(credentials.CLIENT_ID_BYTES)
        self._num_calls = 0
        # Numbers of the calls without an answer, the oldest first.
        self._open_calls: dict[int, None] = {}
        self._follow_address()

    @property
    def address(self) -> str:
        """The server's "host:port"; waits until it is known."""
        return self._target if isinstance(self._target, str) else self._target.resolve()

    @property
    def owner(self) -> str:
        """Name of the server in messages: its node's "label/index", or its address."""
        if isinstance(self._target, str):
            return self._target
        owners = self.runtime.info.owners if self.runtime else {}
        return owners.get(self._target.key, self._target.name or "server")

    @property
    def has_fixed_address(self) -> bool:
        """Whether the client was given "host:port", which cannot change."""
        return isinstance(self._target, str)

    @property
    def link(self) -> rpc_link.Link | None:
        """The link to the server; None before the first call and after its loss."""
        self._join_program()
        return self._link

    @contextlib.contextmanager
    def as_client(self) -> Iterator[None]:
        """Makes the client's runtime the current one of this thread."""
        before = lp_runtime.set_thread_runtime(self.runtime)
        try:
            yield
        finally:
            lp_runtime.set_thread_runtime(before)

    def send(self, request: bytes) -> bytes:
        """Sends an encoded request until it is answered; returns the answer, still encoded.

        Raises:
          CourierDeadlineError: the deadline has passed.
          CourierUnavailableError: the server was gone for `retry_secs`, or is not there and the
            program is stopping.
          CourierAuthenticationError: the server belongs to another program.
        """
        call = Call(self, request)
        try:
            while True:
                link = self.link or self.find_link(call.remaining())
                if link is not None and self._may_send(call, link):
                    try:
                        answer = link.call(request, call.ticket(), call.remaining())
                        call.answered()
                        return answer
                    except (grpc.RpcError, ValueError, rpc_link.UnverifiedAnswerError) as error:
                        call.failed(link, error)
                call.check()
                time.sleep(_PAUSE_SECS)
        finally:
            call.close()

    def _may_send(self, call: Call, link: rpc_link.Link) -> bool:
        if call.is_lost:
            if link.is_ready(_ADDRESS_SECS):
                call.reconnected()
                return True
            return not self.was_reached
        # Without a second attempt, the first one must not be made before the server is there.
        return self.retry_secs > 0 or link.was_ready or link.is_ready(_ADDRESS_SECS)

    def find_link(self, timeout: float | None) -> rpc_link.Link | None:
        """Returns the link to the server's current address.

        Args:
          timeout: Seconds to wait for the address; None for as long as one attempt takes.

        Returns:
          The link, connected or not; None if the address is not known yet.

        Raises:
          CourierUnavailableError: the program is stopping and the address is not known.
        """
        self._join_program()
        address = self._known_address(timeout)
        if address is None:
            return None
        with self._lock:
            if self._link is None:
                identity = b"" if isinstance(self._target, str) else self._target.key.encode()
                secret = self.runtime.info.secret if self.runtime else credentials.of_user()
                self._link = rpc_link.Link(address, secret, identity, self._compress)
            return self._link

    def drop(self, link: rpc_link.Link) -> None:
        """Drops a link whose server is gone; all calls on it are cancelled soon afterwards."""
        with self._lock:
            if self._link is link:
                self._link = None
        # Not in this thread: it may be the one in which gRPC runs the callbacks of calls, and
        # closing waits until all of them have run.
        threading.Thread(target=link.close, name="courier-close", daemon=True).start()

    def open_call(self) -> int:
        """Returns the number of a new call."""
        with self._lock:
            self._num_calls += 1
            self._open_calls[self._num_calls] = None
            return self._num_calls

    def close_call(self, number: int) -> None:
        """Lets later tickets confirm the answer to a call. May be called again."""
        with self._lock:
            self._open_calls.pop(number, None)

    def ticket(self, number: int) -> credentials.Ticket:
        """Returns the ticket of a call, which also confirms what has been answered so far."""
        limit = credentials.MAX_OPEN_CALLS
        with self._lock:
            oldest = list(itertools.islice(self._open_calls, limit + 1))
        older = [each for each in oldest if each < number]
        # All up to here are answered or among `older`.
        upto = number - 1 if len(older) <= limit else older.pop() - 1
        while older and older[-1] == upto:  # These need not be listed.
            older.pop()
            upto -= 1
        return credentials.Ticket(self._client_id, number, upto, tuple(older))

    def _known_address(self, timeout: float | None) -> str | None:
        if isinstance(self._target, str):
            return self._target
        wait = _ADDRESS_SECS if self.wait_for_ready else 0.0
        try:
            with self.as_client():  # The calling thread may belong to another program.
                return self._target.resolve(wait if timeout is None else min(wait, timeout))
        except TimeoutError:
            return None
        except errors.ProgramStoppedError as error:
            raise errors.CourierUnavailableError(str(error)) from error

    def _join_program(self) -> None:
        """Joins the program of the target, which may be launched after this was made.

        After its end, that may be launched again. The client of a node ends with the node.
        """
        if isinstance(self._target, str):
            return
        if self.runtime is None:
            runtime = self._target.runtime()
        elif self.runtime.is_node or not self.runtime.stop_event.is_set():
            return
        else:
            runtime = lp_runtime.owner_of(self._target.key)
        if runtime in (None, self.runtime):
            return
        with self._lock:
            self.runtime, self.was_reached = runtime, False
            link = self._link
        if link is not None:
            self.drop(link)
        self._follow_address()

    def _follow_address(self) -> None:
        """Makes the link end when the server's node publishes another address.

        A host that falls silent closes no connection: without this, calls that wait for its answer
        would wait until the connection's own checks fail.
        """
        if isinstance(self._target, str) or self.runtime is None:
            return
        book, key = self.runtime.book, self._target.key
        with _followers_lock:
            by_key = _followers.setdefault(book, {})
            if key not in by_key:
                by_key[key] = weakref.WeakSet()
                book.watch(key, functools.partial(_drop_moved, by_key[key]))
            by_key[key].add(self)


def _drop_moved(followers: weakref.WeakSet[Connection], address: str) -> bool:
    """Ends the links to other addresses; returns True, so that the book keeps this watcher."""
    with _followers_lock:
        connections = list(followers)
    for connection in connections:
        link = connection._link
        if link is not None and link.address != address:
            connection.drop(link)
    return True


class Call:
    """One call, however often it is sent: its ticket, its deadline, and when it is given up.

    Attributes:
      request: The encoded request.
    """

    def __init__(self, connection: Connection, request: bytes):
        """Opens the call; `close` must follow."""
        self.request = request
        self._connection = connection
        self._started = self._told = time.monotonic()
        self._lost_at: float | None = None
        self._was_refused = False
        self._number = connection.open_call()

    def ticket(self) -> credentials.Ticket:
        """Returns what identifies the call."""
        return self._connection.ticket(self._number)

    def close(self) -> None:
        """Ends the call: its answer is no longer awaited."""
        self._connection.close_call(self._number)

    def remaining(self) -> float | None:
        """Returns the seconds until the deadline, or None without one."""
        timeout = self._connection.timeout
        if timeout is None:
            return None
        return max(0.001, timeout - (time.monotonic() - self._started))

    @property
    def is_lost(self) -> bool:
        """Whether the connection broke, and the server was not found again."""
        return self._lost_at is not None

    def reconnected(self) -> None:
        """Restarts the time for retries, because the server was found again."""
        if not self._was_refused:  # Another process at its address would be found each time.
            self._lost_at = None

    def answered(self) -> None:
        """Records that the server has answered: from now on, waits for it are limited."""
        self._connection.was_reached = True

    def failed(self, link: rpc_link.Link, error: Exception) -> None:
        """Returns if the call may be sent again, and raises its error if not.

        Args:
          link: The link on which it failed.
          error: gRPC's error, the ValueError of a closed link, or UnverifiedAnswerError.
        """
        connection = self._connection
        code = error.code() if isinstance(error, grpc.RpcError) else None
        if isinstance(error, rpc_link.UnverifiedAnswerError):
            code = grpc.StatusCode.UNAUTHENTICATED
        self._was_refused = code == grpc.StatusCode.UNAUTHENTICATED
        if self._was_refused:
            if connection.has_fixed_address:
                raise self._translated(error) from None
            # The node's port went to another process; the node will publish its new address.
            connection.drop(link)
        elif code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, None):
            raise self._translated(error) from None  # None and CANCELLED: the link was closed.
        self._lost_at = self._lost_at or time.monotonic()
        is_hopeless = self._lost_secs() >= connection.retry_secs
        if is_hopeless and (connection.was_reached or link.was_ready):
            raise self._translated(error) from None

    def check(self) -> None:
        """Logs every 10 s what the call waits for.

        Raises:
          CourierUnavailableError: waiting for the server has become pointless.
          CourierDeadlineError: the deadline has passed.
        """
        connection, now = self._connection, time.monotonic()
        name = connection.runtime.name if connection.runtime else "client"
        owner = connection.owner
        if connection.runtime is not None and connection.runtime.stop_event.is_set():
            raise errors.CourierUnavailableError(
                f"{name}: the server of {owner} is gone and the program is stopping"
            )
        if not connection.wait_for_ready or (
            connection.was_reached and self._lost_secs() >= connection.retry_secs
        ):
            raise errors.CourierUnavailableError(f"{name}: the server of {owner} can't be reached")
        if connection.timeout is not None and now - self._started >= connection.timeout:
            raise errors.CourierDeadlineError(
                f"{name}: the server of {owner} was not reached in {connection.timeout:g} s"
            )
        if now - self._told > lp_runtime.WAIT_MESSAGE_SECS:
            self._told = now
            logger.warning(
                "%s: waiting for the server of %s (%.0f s)", name, owner, now - self._started
            )

    def _lost_secs(self) -> float:
        return 0.0 if self._lost_at is None else time.monotonic() - self._lost_at

    def _translated(self, error: Any) -> Exception:
        connection = self._connection
        where = f"call of {wire.method_of(self.request)}() on {connection.owner}"
        if isinstance(error, rpc_link.UnverifiedAnswerError):
            return errors.CourierAuthenticationError(
                f"{where} was answered by a process that does not know this program's secret"
            )
        if not isinstance(error, grpc.RpcError):
            return errors.CourierUnavailableError(f"{where} lost its connection")
        code, details = error.code(), error.details()
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            # A first call may have had too little time left to reach a server that is there.
            before = "" if connection.was_reached else "; the server was not reached before"
            return errors.CourierDeadlineError(
                f"{where} took longer than {connection.timeout:g} s{before}"
            )
        if code == grpc.StatusCode.UNAUTHENTICATED:
            if connection.has_fixed_address:  # Secrets inside and outside a program differ.
                details = f"{details}; set LAUNCHPAD_SECRET for both sides"
            return errors.CourierAuthenticationError(f"{where} was refused: {details}")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return errors.CourierUnavailableError(f"{where} lost its server: {details}")
        return errors.CourierError(f"{where} failed: {code.name}: {details}")
