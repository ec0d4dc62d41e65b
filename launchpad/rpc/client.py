"""Calls the methods of a served object."""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc

from launchpad import address as lp_address
from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.rpc import link as rpc_link
from launchpad.rpc import server as rpc_server
from launchpad.rpc import wire

logger = logging.getLogger("launchpad")

# A call without a deadline of its own is given up after this many seconds.
DEFAULT_CALL_TIMEOUT_SECS = 600.0
# How long calls wait for a server that went away, in seconds.
DEFAULT_RETRY_SECS = 60.0


class CourierClient:
    """A client of a CourierNode: `client.method(*args)` runs `method` on the served object.

    The first call waits for the server, and says every 10 s what it waits for. An exception of the
    method is raised here with the server's traceback as its cause.

    A call whose connection breaks is repeated for `retry_secs` on the server's current address; a
    server that died in the midst of the call may have run it already, so calls are at-least-once.
    With `retry_secs=0` they are at-most-once and raise CourierUnavailableError instead.

    Clients are thread-safe and pickle; a pickled one connects anew.
    """

    def __init__(
        self,
        server_address: str | lp_address.Address,
        compress: bool = False,
        call_timeout: float | datetime.timedelta | None = None,
        wait_for_ready: bool = True,
        chunk_tensors: bool = False,
        *,
        retry_secs: float = DEFAULT_RETRY_SECS,
    ):
        """Makes a client; connects only at the first call.

        Args:
          server_address: "host:port", or the address of a node.
          compress: gzip the messages.
          call_timeout: Deadline of each call in seconds; None for 600, 0 for none.
          wait_for_ready: False to fail at once where the server is not there.
          chunk_tensors: Accepted for upstream's sake; messages have no size limit.
          retry_secs: How long a call waits for a server that went away, in seconds.
        """
        self._init_args = (server_address, compress, call_timeout, wait_for_ready, chunk_tensors)
        self._retry_secs = retry_secs
        if isinstance(call_timeout, datetime.timedelta):
            call_timeout = call_timeout.total_seconds()
        if call_timeout is None:
            call_timeout = DEFAULT_CALL_TIMEOUT_SECS
            self._has_own_timeout = False
        else:
            self._has_own_timeout = call_timeout > 0
        self._timeout = call_timeout or None
        self._wait_for_ready = wait_for_ready
        self._compression = grpc.Compression.Gzip if compress else None
        self._target = server_address
        self._runtime = (
            lp_runtime.current() if isinstance(server_address, str) else server_address.runtime()
        )
        self._link: rpc_link.Link | None = None
        self._lock = threading.Lock()
        self._futures = _FuturesClient(self)

    def __reduce__(self) -> Any:
        return _rebuild, (self._init_args, self._retry_secs)

    def __repr__(self) -> str:
        where = self._link.address if self._link else "not connected"
        return f"CourierClient({self._owner()}, {where})"

    @property
    def address(self) -> str:
        """The server's "host:port"; waits until it is known."""
        return self._target if isinstance(self._target, str) else self._target.resolve()

    @property
    def futures(self) -> _FuturesClient:
        """The same methods, each returning a `concurrent.futures.Future` at once."""
        return self._futures

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):  # Such methods are not served; pickle and copy ask for them.
            raise AttributeError(method)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.call(method, args, kwargs)

        call.__name__ = method
        self.__dict__[method] = call  # The next use costs nothing.
        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call("__call__", args, kwargs)

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs `method` on the server.

        Raises:
          CourierDeadlineError: the deadline has passed.
          CourierUnavailableError: the server is gone, and stayed away for `retry_secs`.
          CourierAuthenticationError: the server belongs to another program.
          Exception: whatever the method raised.
        """
        return _unpack(self.forward(wire.encode(self._token(), method.encode(), (args, kwargs))))

    def forward(self, request: bytes) -> bytes:
        """Sends an encoded call and returns the encoded answer, without unpickling either.

        Raises:
          CourierError: as `call`, but without the method's own exceptions.
        """
        started = time.monotonic()
        lost_at: float | None = None
        while True:
            link = self._link or self._connect(started, lost_at)
            try:
                # Within one process only an explicit deadline is enforced: it costs a thread.
                enforced = self._has_own_timeout or not link.is_local
                timeout = self._remaining(started) if enforced else None
                return link.call(request, timeout)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise self._translate(error, _name(request)) from None
                self._drop(link)
                lost_at = lost_at or time.monotonic()
                if time.monotonic() - lost_at >= self._retry_secs:
                    raise self._translate(error, _name(request)) from None

    # -- connection -------------------------------------------------------------------------------

    def _token(self) -> bytes:
        return self._runtime.info.token if self._runtime else bytes(wire.TOKEN_BYTES)

    def _owner(self) -> str:
        if isinstance(self._target, str):
            return self._target
        owners = self._runtime.info.owners if self._runtime else {}
        return owners.get(self._target.key, self._target.name or "server")

    def _remaining(self, started: float) -> float | None:
        if self._timeout is None:
            return None
        return max(0.001, self._timeout - (time.monotonic() - started))

    def _drop(self, link: rpc_link.Link) -> None:
        with self._lock:
            if self._link is link:
                self._link = None  # Not closed: other threads may still wait for answers on it.

    def _connect(self, started: float, lost_at: float | None) -> rpc_link.Link:
        """Waits for the server; returns a connection that has answered once."""
        with self._lock:
            if self._link is not None:
                return self._link
            told = time.monotonic()
            while True:
                address = self.address
                link = rpc_link.Link(address, self._compression)
                if self._is_alive(link):
                    self._link = link
                    return link
                link.close()
                self._give_up_if_hopeless(started, lost_at)
                if time.monotonic() - told > lp_runtime.WAIT_MESSAGE_SECS:
                    told = time.monotonic()
                    logger.warning(
                        "%s: waiting for the server of %s at %s (%.0f s)",
                        self._runtime.name if self._runtime else "client",
                        self._owner(),
                        link.address,
                        told - started,
                    )
                time.sleep(0.1)

    def _is_alive(self, link: rpc_link.Link) -> bool:
        ping = wire.encode(self._token(), rpc_server.PING, None)
        try:
            link.call(ping, 1.0)
            return True
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED and isinstance(self._target, str):
                raise self._translate(error, "ping") from None
            # With a node's address: its port may just have gone to another program's server, and
            # the node will tell its new one.
            return False

    def _give_up_if_hopeless(self, started: float, lost_at: float | None) -> None:
        now = time.monotonic()
        name = self._runtime.name if self._runtime else "client"
        if self._runtime is not None and self._runtime.stop_event.is_set():
            raise errors.CourierUnavailableError(
                f"{name}: the server of {self._owner()} is gone and the program is stopping"
            )
        if not self._wait_for_ready or (lost_at and now - lost_at >= self._retry_secs):
            raise errors.CourierUnavailableError(
                f"{name}: the server of {self._owner()} can't be reached"
            )
        if self._timeout is not None and now - started >= self._timeout:
            raise errors.CourierDeadlineError(
                f"{name}: the server of {self._owner()} was not reached in {self._timeout:g} s"
            )

    def _translate(self, error: grpc.RpcError, method: str) -> Exception:
        code, details = error.code(), error.details()
        where = f"call of {method}() on {self._owner()}"
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.CourierDeadlineError(f"{where} took longer than {self._timeout:g} s")
        if code == grpc.StatusCode.UNAUTHENTICATED:
            return errors.CourierAuthenticationError(f"{where} was refused: {details}")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return errors.CourierUnavailableError(f"{where} lost its server: {details}")
        return errors.CourierError(f"{where} failed: {code.name}: {details}")


class _FuturesClient:
    """Calls that return futures; see `CourierClient.futures`."""

    def __init__(self, client: CourierClient):
        self._client = client

    def __getattr__(self, method: str) -> Callable[..., futures.Future[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args, **kwargs: self._submit(method, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        return self._submit("__call__", args, kwargs)

    def _submit(self, method: str, args: Any, kwargs: Any) -> futures.Future[Any]:
        client = self._client
        result: futures.Future[Any] = futures.Future()
        link = client._link
        if link is None or link.is_local:
            # Connecting blocks, and so does a call within this process.
            _in_thread(result, client, method, args, kwargs)
            return result
        request = wire.encode(client._token(), method.encode(), (args, kwargs))
        call = link.start(request, client._timeout)
        result.add_done_callback(lambda done: call.cancel() if done.cancelled() else None)

        def finish(call: Any) -> None:
            if result.cancelled():
                return
            error = call.exception()
            if error is None:
                _settle(result, lambda: _unpack(call.result()))
            elif call.code() == grpc.StatusCode.UNAVAILABLE and client._retry_secs > 0:
                client._drop(link)
                _in_thread(result, client, method, args, kwargs)
            else:
                translated = client._translate(call, method)
                _settle(result, lambda: _raise(translated))

        call.add_done_callback(finish)
        return result


def _name(request: bytes) -> str:
    return wire.method_of(request, wire.TOKEN_BYTES)


def _unpack(answer: bytes) -> Any:
    value = wire.decode(answer, 1)
    if answer[:1] == wire.OK:
        return value
    error = value.rebuild()
    if not isinstance(error, Exception):  # Another side's SystemExit must not end this one.
        error = errors.RemoteError(f"{value.type_name}: {value.message}")
    raise error from errors.RemoteTraceback(value.traceback_text)


def _raise(error: BaseException) -> Any:
    raise error


def _settle(result: futures.Future[Any], compute: Callable[[], Any]) -> None:
    with contextlib.suppress(futures.InvalidStateError):  # Cancelled by its owner meanwhile.
        try:
            value = compute()
        except BaseException as error:  # The future carries it to whoever waits.
            result.set_exception(error)
        else:
            result.set_result(value)


def _in_thread(result: futures.Future[Any], client: CourierClient, method: str, args, kwargs):
    def work() -> None:
        lp_runtime.set_thread_runtime(client._runtime)
        _settle(result, lambda: client.call(method, args, kwargs))

    threading.Thread(target=work, name=f"courier-{method}", daemon=True).start()


def _rebuild(init_args: tuple[Any, ...], retry_secs: float) -> CourierClient:
    return CourierClient(*init_args, retry_secs=retry_secs)


def list_methods(client: CourierClient) -> list[str]:
    """Returns the names of the methods that the client's server offers."""
    return client.call(rpc_server.PING.decode(), (), {})
