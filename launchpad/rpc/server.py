"""Serves the public methods of an object."""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.rpc import threads, wire

logger = logging.getLogger("launchpad")

CALL_PATH = "/launchpad.Courier/Call"
PING = b"\0ping"  # Not a Python name, so no method can have it.
_PING_NAME = PING.decode()

# Handlers may block, for example in a long poll: this many at once.
DEFAULT_THREAD_POOL_SIZE = 128

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # Else two servers can share a port in silence.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

# Servers of this process by address: clients beside them call them without gRPC.
_local_servers: dict[str, Server] = {}


def local_server(address: str) -> Server | None:
    """Returns the server at `address` if it lives in this process."""
    return _local_servers.get(address)


class Server:
    """A gRPC server of named Python functions.

    The port is bound in the constructor, atomically, and served from `start()` to `stop()`.
    """

    def __init__(
        self,
        token: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        thread_pool_size: int = DEFAULT_THREAD_POOL_SIZE,
        runtime: lp_runtime.NodeRuntime | None = None,
    ):
        """Binds the port.

        Args:
          token: Secret of the program; calls without it are refused before they are unpickled.
          host: IP address to bind.
          port: Port to bind; 0 for any free one. One that is taken is replaced by a free one.
          thread_pool_size: Number of calls that are handled at once.
          runtime: Current runtime while a method runs.
        """
        self.token = token
        self._runtime = runtime
        self._methods: dict[str, Callable[..., Any]] = {}
        self._forward: Callable[[bytes], bytes] | None = None
        self._pool = threads.DaemonExecutor(thread_pool_size, "courier")
        self._slots = threading.Semaphore(thread_pool_size)
        self._server = grpc.server(
            self._pool, handlers=(_Router(self._handle),), options=list(_OPTIONS)
        )
        self._port = _bind(self._server, host, port)
        self.address = f"{host}:{self._port}"
        self._is_open = False

    @property
    def port(self) -> int:
        return self._port

    def bind(self, name: str, function: Callable[..., Any]) -> None:
        """Serves `function` as method `name`."""
        self._methods[name] = function

    def bind_forward(self, forward: Callable[[bytes], bytes]) -> None:
        """Answers calls of unbound names by `forward`: a whole request to a whole answer."""
        self._forward = forward

    def start(self) -> None:
        self._server.start()
        self._is_open = True
        _local_servers[self.address] = self

    def stop(self, grace_secs: float = 0.5) -> None:
        """Refuses new calls at once, and ends running ones after `grace_secs`."""
        self._is_open = False
        if _local_servers.get(self.address) is self:
            del _local_servers[self.address]
        self._server.stop(grace_secs).wait(grace_secs + 1.0)
        self._pool.shutdown()

    # Upstream's names, for objects that take over their server in `set_courier_server()`.
    Bind = bind
    Start = start
    Stop = stop

    def Join(self) -> None:  # noqa: N802
        """Returns when the server has stopped."""
        self._server.wait_for_termination()

    def call_in_process(self, request: bytes) -> bytes | None:
        """Answers a call of a client in this process, in its own thread; None if stopped."""
        if not self._is_open:
            return None
        with self._slots:
            return self._answer(request, Exception)

    def submit_in_process(self, request: bytes) -> futures.Future[bytes | None]:
        """Like `call_in_process`, in a thread of the server."""
        return self._pool.submit(self.call_in_process, request)

    def _handle(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if not hmac.compare_digest(request[: wire.TOKEN_BYTES], self.token):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token: this is another program")
        # SystemExit too goes to the caller: a call must not end a thread of the server.
        return self._answer(request, BaseException)

    def _answer(self, request: bytes, caught: type[BaseException]) -> bytes:
        previous = lp_runtime.set_thread_runtime(self._runtime)
        try:
            name = wire.method_of(request, wire.TOKEN_BYTES)
            function = self._methods.get(name)
            if function is not None:
                args, kwargs = wire.decode(request, wire.TOKEN_BYTES)
                return wire.encode(wire.OK, b"", function(*args, **kwargs))
            if name == _PING_NAME:
                return wire.encode(wire.OK, b"", sorted(self._methods))
            if self._forward is not None:
                return self._forward(request)
            served = ", ".join(sorted(self._methods)) or "nothing"
            raise AttributeError(f"the server has no method {name!r}; it serves: {served}")
        except caught as error:
            return wire.encode(wire.RAISED, b"", errors.ExceptionRecord.of(error))
        finally:
            lp_runtime.set_thread_runtime(previous)


class _Router(grpc.GenericRpcHandler):
    def __init__(self, handle: Callable[[bytes, grpc.ServicerContext], bytes]):
        self._handler = grpc.unary_unary_rpc_method_handler(handle)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handler if handler_call_details.method == CALL_PATH else None


def _bind(server: grpc.Server, host: str, port: int) -> int:
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError:
        bound = 0
    if not bound and port:
        return _bind(server, host, 0)
    if not bound:
        raise OSError(f"no port of {host} can be bound; is it an address of this machine?")
    return bound


def public_methods(instance: Any) -> dict[str, Callable[..., Any]]:
    """Returns what a server of `instance` offers: its public methods and `__call__`."""
    found = {}
    for name in dir(instance):
        if name == "set_courier_server" or (name.startswith("_") and name != "__call__"):
            continue
        # A property must not be computed just because the object is served.
        if isinstance(getattr(type(instance), name, None), property):
            continue
        function = getattr(instance, name)
        if callable(function):
            found[name] = function
    return found
