"""Serves the public methods of an object."""

from __future__ import annotations

import functools
import inspect
import logging
import secrets
from collections.abc import Callable
from typing import Any

import grpc

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.rpc import answers, certificates, credentials, threads, wire

logger = logging.getLogger("launchpad")

CALL_PATH = "/launchpad.Courier/Call"
METHODS = "\0methods"  # Lists the methods; not a Python name, so no method can have it.

COMPRESSION = grpc.Compression.Gzip
# In the metadata of a request whose answer is to be compressed: gRPC does not tell a handler
# whether its request was.
COMPRESS = ("launchpad-compress", "1")

# Number of concurrent handlers, which may block, for example in a long poll.
DEFAULT_THREAD_POOL_SIZE = 128

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # Otherwise two servers could silently share a port.
    # These permit the clients' keepalive pings, every four seconds, during calls and between them.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class MethodServer:
    """A gRPC server of named Python functions.

    The port is bound in the constructor, atomically, and served from `start()` to `stop()`.
    """

    def __init__(
        self,
        secret: bytes,
        host: str = "127.0.0.1",
        port: int | None = None,
        thread_pool_size: int = DEFAULT_THREAD_POOL_SIZE,
        runtime: lp_runtime.NodeRuntime | None = None,
        identity: bytes = b"",
    ):
        """Binds the port.

        Args:
          secret: The secret of the program; a call that is not signed with it is refused before its
            body is read.
          host: IP address to bind.
          port: Port to bind; 0 or None for any free one.
          thread_pool_size: Number of calls that are handled concurrently.
          runtime: Current runtime while a method runs.
          identity: The identity of the node that is served: calls intended for another one are
            refused.

        Raises:
          ValueError: `thread_pool_size` is not positive.
          OSError: the port is taken, or the host is not this machine.
        """
        if thread_pool_size < 1:
            raise ValueError(
                f"expected thread_pool_size of at least 1, got {thread_pool_size}: it is the "
                "number of calls that are handled at once"
            )
        self._secret = secret
        self._identity = identity
        self._nonce = secrets.token_bytes(credentials.NONCE_BYTES)
        self._runtime = runtime
        self._methods: dict[str, Callable[..., Any]] = {}
        self._forward: Callable[[bytes], bytes] | None = None
        self._answers = answers.Answers()
        self._pool = threads.DaemonExecutor(thread_pool_size, "courier")
        self._server = grpc.server(
            self._pool, handlers=(_Router(self._handler),), options=list(_OPTIONS)
        )
        self._port = _bind(self._server, host, port or 0, secret)
        self.address = f"{host}:{self._port}"

    @property
    def port(self) -> int:
        """The bound port."""
        return self._port

    def bind(self, name: str, function: Callable[..., Any]) -> None:
        """Serves `function` as method `name`."""
        self._methods[name] = function

    def bind_methods(self, instance: Any) -> None:
        """Serves the public methods of an object."""
        for name, method in public_methods(instance).items():
            self.bind(name, method)

    def bind_forward(self, forward: Callable[[bytes], bytes]) -> None:
        """Answers calls of unbound names with `forward`: encoded request to encoded answer."""
        self._forward = forward

    def start(self) -> None:
        """Starts to serve."""
        self._server.start()

    def stop(self, grace_secs: float = 0.5) -> None:
        """Refuses new calls immediately, and ends running ones after `grace_secs`."""
        self._server.stop(grace_secs).wait(grace_secs + 1.0)
        self._pool.shutdown()

    def unbind(self, name: str) -> None:
        """Stops serving method `name`; does nothing if it is not served."""
        self._methods.pop(name, None)

    # Upstream's names, for objects that take over their server in `set_courier_server()`.
    Bind = bind
    BindHandler = bind
    Unbind = unbind
    Start = start
    Stop = stop

    def SetIsHealthy(self, is_healthy: bool) -> None:  # noqa: N802
        """Does nothing: the supervisor watches processes, not upstream's health flag."""

    def Join(self) -> None:  # noqa: N802
        """Returns when the server has stopped."""
        self._server.wait_for_termination()

    def _handler(self, metadata: Any) -> grpc.RpcMethodHandler:
        """Returns the handler of a call with this metadata, before its body is read."""
        signed = credentials.verify_request(self._secret, self._identity, metadata)
        if signed is None:
            return grpc.stream_unary_rpc_method_handler(_refuse)
        if signed.nonce != self._nonce:
            return grpc.stream_unary_rpc_method_handler(self._tell_nonce)
        handle = functools.partial(self._handle, signed, COMPRESS in metadata)
        return grpc.unary_unary_rpc_method_handler(handle)

    def _handle(
        self,
        signed: credentials.Request,
        compress: bool,
        request: bytes,
        context: grpc.ServicerContext,
    ) -> bytes:
        ticket = signed.ticket
        try:
            is_signed = signed.is_about(wire.pickled_part(request, 0))
        except ValueError:
            is_signed = False
        if not is_signed:
            _refuse(request, context)
        try:
            answer = self._answers.get(ticket, lambda: self._answer(request))
        except answers.AnsweredError:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "this call has its answer")
            return b""  # Never reached: abort() raises.
        if compress:
            context.set_compression(COMPRESSION)
        pickled = wire.pickled_part(answer, 1)
        context.set_trailing_metadata(credentials.sign_answer(self._secret, ticket, pickled))
        return answer

    def _tell_nonce(self, body: Any, context: grpc.ServicerContext) -> None:
        """Refuses a call that was meant for another incarnation, without reading its body."""
        del body
        context.set_trailing_metadata(credentials.tell_nonce(self._nonce))
        context.abort(grpc.StatusCode.UNAVAILABLE, "the call is meant for another incarnation")

    def _answer(self, request: bytes) -> bytes:
        """Runs the method of a request; returns its result or its exception, encoded."""
        previous = lp_runtime.set_thread_runtime(self._runtime)
        try:
            name = wire.method_of(request)
            function = self._methods.get(name)
            if function is not None:
                args, kwargs = wire.decode(request, 0)
                return wire.encode(wire.OK, b"", function(*args, **kwargs))
            if self._forward is not None:
                return self._forward(request)
            if name == METHODS:
                return wire.encode(wire.OK, b"", sorted(self._methods))
            served = ", ".join(sorted(self._methods)) or "nothing"
            raise AttributeError(f"the server has no method {name!r}; it serves: {served}")
        except BaseException as error:  # SystemExit too: a call must not end a server's thread.
            return wire.encode(wire.RAISED, b"", errors.ExceptionRecord.of(error))
        finally:
            lp_runtime.set_thread_runtime(previous)


class _Router(grpc.GenericRpcHandler):
    def __init__(self, find_handler: Callable[[Any], grpc.RpcMethodHandler]):
        self._find_handler = find_handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method != CALL_PATH:
            return None
        return self._find_handler(handler_call_details.invocation_metadata)


def _refuse(body: Any, context: grpc.ServicerContext) -> None:
    """Ends a call without reading its body, however large it is."""
    del body
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the call is not signed by this program")


def _bind(server: grpc.Server, host: str, port: int, secret: bytes) -> int:
    try:
        bound = certificates.add_port(server, host, port, secret)
    except RuntimeError:
        bound = 0
    if not bound and port:
        raise OSError(
            f"port {port} of {host} is taken; choose another one, or none to get a free one"
        )
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
        static = inspect.getattr_static(type(instance), name, None)
        if isinstance(static, (property, functools.cached_property)):
            continue
        function = getattr(instance, name)
        if callable(function):
            found[name] = function
    return found
