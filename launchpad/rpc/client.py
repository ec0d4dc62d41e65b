"""Calls the methods of a served object."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from concurrent import futures
from typing import Any

from launchpad import address as lp_address
from launchpad import errors
from launchpad.rpc import connection, pending, wire
from launchpad.rpc import server as rpc_server

# How long calls wait for a server that went away, in seconds.
DEFAULT_RETRY_SECS = 60.0
# A hundred years. The clocks of gRPC count nanoseconds: infinity would expire immediately.
_LONGEST_TIMEOUT_SECS = 100 * 365 * 86400.0


class CourierClient:
    """A client of a CourierNode: `client.method(*args)` runs `method` on the served object.

    The first call waits for the server, and logs this every 10 s. An exception of the method is
    raised here with the server's traceback as its cause.

    A call whose connection breaks is sent again for `retry_secs`, to the server's current address.
    A server that is still running runs it only once (see `launchpad.rpc.answers`); a restarted
    server may run it a second time, if its predecessor died after running it. With `retry_secs=0`,
    nothing is sent twice: such a call raises CourierUnavailableError.

    Clients are thread-safe and can be pickled; an unpickled client opens its own connection.
    """

    def __init__(
        self,
        server_address: str | lp_address.Address,
        compress: bool = False,
        call_timeout: float | datetime.timedelta | None = None,
        wait_for_ready: bool = True,
        chunk_tensors: bool = False,
        *,
        load_balancing_policy: object = None,
        propagate_deadline: bool = True,
        retry_secs: float = DEFAULT_RETRY_SECS,
    ):
        """Makes a client; connects only at the first call.

        Args:
          server_address: "host:port", or the address of a node.
          compress: gzip requests and answers.
          call_timeout: Deadline of each call in seconds; None or 0 for none.
          wait_for_ready: False to fail immediately if the server is not there.
          chunk_tensors: Accepted for compatibility with upstream; messages have no size limit.
          load_balancing_policy: Accepted for compatibility with upstream; a node has one server.
          propagate_deadline: Accepted for compatibility with upstream; a call has its client's
            deadline.
          retry_secs: How long a call waits for a server that went away, in seconds. A server
            forgets the calls of a client that was silent for an hour, and may then run them again.
        """
        del load_balancing_policy, propagate_deadline
        self._init_args = (server_address, compress, call_timeout, wait_for_ready, chunk_tensors)
        self._retry_secs = retry_secs
        if isinstance(call_timeout, datetime.timedelta):
            call_timeout = call_timeout.total_seconds()
        self._connection = connection.Connection(
            server_address,
            min(call_timeout, _LONGEST_TIMEOUT_SECS) if call_timeout else None,
            retry_secs,
            wait_for_ready,
            compress,
        )
        self._futures = _FuturesClient(self._connection, self._unpack)

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self._init_args, self._retry_secs)

    def __repr__(self) -> str:
        link = self._connection.link
        return (
            f"CourierClient({self._connection.owner}, {link.address if link else 'not connected'})"
        )

    @property
    def address(self) -> str:
        """The server's "host:port"; waits until it is known."""
        return self._connection.address

    @property
    def futures(self) -> _FuturesClient:
        """The same methods, each returning a `concurrent.futures.Future` immediately."""
        return self._futures

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):  # Such methods are not served; pickle and copy look them up.
            raise AttributeError(method)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(method, args, kwargs)

        call.__name__ = method
        self.__dict__[method] = call  # The next use is a plain attribute.
        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("__call__", args, kwargs)

    def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs `method` on the server.

        Raises:
          CourierDeadlineError: the deadline has passed.
          CourierUnavailableError: the server was gone for `retry_secs`, or is not there and the
            program is stopping.
          CourierAuthenticationError: the server belongs to another program.
          Exception: whatever the method raised.
        """
        request = wire.encode(b"", method.encode(), (args, kwargs))
        return self._unpack(self._connection.send(request))

    def _unpack(self, answer: bytes) -> Any:
        """Returns the result of an encoded answer, or raises the exception that it holds."""
        return _unpack(answer)


class _FuturesClient:
    """Calls that return futures; see `CourierClient.futures`."""

    def __init__(self, owner: connection.Connection, unpack: Callable[[bytes], Any]):
        self._connection = owner
        self._unpack = unpack
        self._pending = pending.PendingCalls(owner)

    def __getattr__(self, method: str) -> Callable[..., futures.Future[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args, **kwargs: self._submit(method, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        return self._submit("__call__", args, kwargs)

    def _submit(self, method: str, args: Any, kwargs: Any) -> futures.Future[Any]:
        return self._send(wire.encode(b"", method.encode(), (args, kwargs)), self._unpack)

    def _send(self, request: bytes, unpack: Callable[[bytes], Any]) -> futures.Future[Any]:
        call = connection.Call(self._connection, request)
        return self._pending.submit(call, self._connection.link, unpack)


def _unpack(answer: bytes) -> Any:
    """Returns the result of an encoded answer, or raises the exception that it holds."""
    value = wire.decode(answer, 1)
    if answer[:1] == wire.OK:
        return value
    error = value.rebuild()
    if not isinstance(error, Exception):  # The server's SystemExit must not end this process.
        error = errors.RemoteError(f"{value.type_name}: {value.message}")
    raise error from errors.RemoteTraceback(value.traceback_text)


def _rebuild(
    kind: type[CourierClient], init_args: tuple[Any, ...], retry_secs: float
) -> CourierClient:
    return kind(*init_args, retry_secs=retry_secs)


def list_methods(client: CourierClient) -> list[str]:
    """Returns the names of the methods that the client's server offers."""
    return client._call(rpc_server.METHODS, (), {})


def forward(client: CourierClient, request: bytes) -> futures.Future[bytes]:
    """Sends an encoded request; returns the future of the encoded answer. Unpickles neither.

    Exceptions of the method are part of the answer; one of the future means that the call failed.
    """
    return client._futures._send(request, lambda answer: answer)
