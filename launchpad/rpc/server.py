"""Serves the public methods of an object."""

from __future__ import annotations

import functools
import inspect
import logging
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any

import grpc

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.rpc import tls, wire

logger = logging.getLogger("launchpad")

CALL_PATH = "/launchpad.Courier/Call"
METHODS = "\0methods"  # Lists the methods; not a Python name, so no method can have it.

COMPRESSION = grpc.Compression.Gzip
# In the metadata of a request whose answer is to be compressed: gRPC does not tell a handler
# whether its request was.
COMPRESS = ("launchpad-compress", "1")
# In the metadata of each request: which call it is, however often it is sent, and which calls of
# the same client have their answers. gRPC demands the ending for binary values.
CALL_KEY = "launchpad-call-bin"
CALL = struct.Struct("<16sQ")  # The client, and the number of its call; confirmed numbers follow.
CONFIRMED = struct.Struct("<Q")

# Number of concurrent handlers, which may block, for example in a long poll.
DEFAULT_THREAD_POOL_SIZE = 128

# A client that lost its connection has this long to send a call again.
KEEP_SECS = 3600.0
# Larger answers are not kept: a thousand actors would mean a thousand copies of the weights.
MAX_BYTES = 1 << 20
# Limit of all kept answers together; the oldest are dropped first.
MAX_KEPT_BYTES = 64 << 20
# Overhead of an answer besides its own bytes.
_BYTES_BESIDE = 1024

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

    The address is bound in the constructor, atomically, and served from `start()` to `stop()`.
    """

    def __init__(
        self,
        secret: bytes,
        address: str = f"{tls.LOOPBACK}:0",
        thread_pool_size: int = DEFAULT_THREAD_POOL_SIZE,
        runtime: lp_runtime.NodeRuntime | None = None,
        identity: str = "",
    ):
        """Binds the address.

        Args:
          secret: The secret of the program; processes that do not know it can't connect.
          address: "unix:PATH"; or "host:port" with an IP address to bind, and 0 for any free port.
          thread_pool_size: Number of calls that are handled concurrently. With 1, a method that
            calls a server which calls back waits for itself, for ever.
          runtime: Current runtime while a method runs.
          identity: The identity of the node that is served: clients of another one can't connect.

        Raises:
          ValueError: `thread_pool_size` is not positive.
          OSError: the port is taken, or the host is not this machine.
        """
        if thread_pool_size < 1:
            raise ValueError(
                f"expected thread_pool_size of at least 1, got {thread_pool_size}: it is the "
                "number of calls that are handled at once"
            )
        self._runtime = runtime
        self._methods: dict[str, Callable[..., Any]] = {}
        self._forward: Callable[[bytes], bytes] | None = None
        self._answers = _Answers()
        self._pool = _DaemonExecutor(thread_pool_size, "courier")
        service, _, method = CALL_PATH.removeprefix("/").partition("/")
        handlers = {method: grpc.unary_unary_rpc_method_handler(self._handle)}
        handler = grpc.method_handlers_generic_handler(service, handlers)
        self._server = grpc.server(self._pool, handlers=(handler,), options=list(_OPTIONS))
        self.has_started = False
        self._port = tls.add_port(self._server, address, secret, identity)
        host, _, port = address.rpartition(":")
        self.address = f"{host}:{self._port}" if port.isdigit() else address

    @property
    def port(self) -> int:
        """The bound port."""
        return self._port

    def bind(self, name: str, function: Callable[..., Any], is_priority: bool = False) -> None:
        """Serves `function` as method `name`; upstream's `is_priority` has no effect."""
        del is_priority
        self._methods[name] = function

    def bind_methods(self, instance: Any) -> None:
        """Serves the public methods of an object."""
        for name, method in public_methods(instance).items():
            self.bind(name, method)

    def bind_forward(self, forward: Callable[[bytes], bytes]) -> None:
        """Answers calls of unbound names with `forward`: encoded request to encoded answer."""
        self._forward = forward

    def start(self) -> None:
        """Starts to serve.

        Raises:
          ValueError: It was started before.
        """
        if self.has_started:
            raise ValueError("Server already started")
        self.has_started = True
        self._server.start()

    def stop(self, grace_secs: float = 0.5) -> None:
        """Refuses new calls immediately, and ends running ones after `grace_secs`."""
        self._server.stop(grace_secs).wait(grace_secs + 1.0)
        self._pool.shutdown()

    def unbind(self, name: str) -> None:
        """Stops serving method `name`; does nothing if it is not served."""
        self._methods.pop(name, None)

    # Upstream's names. Like upstream's, the methods that need a started server raise ValueError.
    Bind = bind
    BindHandler = bind
    Unbind = unbind
    Start = start

    def Stop(self) -> None:  # noqa: N802
        """Ends the server."""
        self._check_started()
        self.stop()

    def SetIsHealthy(self, is_healthy: bool) -> None:  # noqa: N802
        """Does nothing: clients have one server, so there is no load to move elsewhere."""
        self._check_started()

    def Join(self) -> None:  # noqa: N802
        """Returns when the server has stopped."""
        self._check_started()
        self._server.wait_for_termination()

    def _check_started(self) -> None:
        if not self.has_started:
            raise ValueError("Server not started")

    def _handle(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        metadata = context.invocation_metadata()
        answer = self._answers.get(_value(metadata), lambda: self._answer(request))
        if COMPRESS in metadata:
            context.set_compression(COMPRESSION)
        return answer

    def _answer(self, request: bytes) -> bytes:
        """Runs the method of a request; returns its result or its exception, encoded."""
        lp_runtime.set_thread_runtime(self._runtime)  # This thread only answers.
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
            raise AttributeError(f"method {name} not found; the server serves: {served}")
        except BaseException as error:  # SystemExit too: a call must not end a server's thread.
            return wire.encode(wire.RAISED, b"", errors.ExceptionRecord.of(error))


class Server(MethodServer):
    """Serves functions by name on a port of this machine. It can be started once."""

    def __init__(
        self, name: str | None = None, port: int | None = None, thread_pool_size: int = 16
    ):
        """Binds the port; serves nothing yet.

        Args:
          name: Accepted for compatibility with upstream; clients need the address.
          port: TCP port; None for a free one.
          thread_pool_size: Number of calls that are handled concurrently.

        Raises:
          ValueError: `thread_pool_size` is not positive.
          OSError: The port is taken.
        """
        del name
        runtime = lp_runtime.current()
        secret = runtime.info.secret if runtime else tls.secret_of_user()
        super().__init__(secret, f"{tls.LOOPBACK}:{port or 0}", thread_pool_size, runtime)
        self.address = f"localhost:{self.port}"


def _value(metadata: Iterable[Any]) -> bytes:
    return next((value for key, value in metadata if key == CALL_KEY), b"")


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


class _Answers:
    """Runs every call once, however often it arrives while its client waits.

    A client repeats a call whose connection broke. The repetition waits for the first run, or gets
    its answer. An answer is dropped when the client confirms it with a later call, and after an
    hour.

    Calls with answers over `MAX_BYTES` run again when they are repeated after they have ended: a
    method with a large result should only read. So do calls whose answers were dropped because
    newer ones take `MAX_KEPT_BYTES`.
    """

    def __init__(self) -> None:
        self._calls: dict[bytes, futures.Future[bytes]] = {}
        # Time and size of the answers that are kept, the oldest first.
        self._kept: dict[bytes, tuple[float, int]] = {}
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def get(self, value: bytes, run: Callable[[], bytes]) -> bytes:
        """Returns the answer of a call; runs it if it is new.

        Args:
          value: Which call it is, and which calls of its client are answered; see `CALL_KEY`.
          run: Computes the encoded answer; never raises.
        """
        if len(value) < CALL.size:
            return run()
        call, client = value[: CALL.size], value[: CALL.size - CONFIRMED.size]
        with self._lock:
            for start in range(CALL.size, len(value), CONFIRMED.size):
                self._drop(client + value[start : start + CONFIRMED.size])
            answer = self._calls.get(call)
            is_new = answer is None
            if answer is None:
                answer = self._calls[call] = futures.Future()
        if is_new:
            answer.set_result(run())
            with self._lock:
                self._keep(call, len(answer.result()))
        return answer.result()

    def _keep(self, call: bytes, size: int) -> None:
        now = time.monotonic()
        self._kept[call] = (now, size + _BYTES_BESIDE)
        self._kept_bytes += size + _BYTES_BESIDE
        if size > MAX_BYTES:
            self._drop(call)
        while self._kept:
            oldest, (kept_at, _) = next(iter(self._kept.items()))
            if self._kept_bytes <= MAX_KEPT_BYTES and now - kept_at <= KEEP_SECS:
                return
            self._drop(oldest)

    def _drop(self, call: bytes) -> None:
        self._calls.pop(call, None)
        self._kept_bytes -= self._kept.pop(call, (0.0, 0))[1]


class _DaemonExecutor(futures.Executor):
    """A thread pool of daemon threads, started as they are needed.

    The standard pool joins its threads at interpreter exit, so one handler that waits forever would
    keep a finished program alive; and it refuses work once the exit has begun, when a program that
    is awaited at exit still needs it.
    """

    def __init__(self, max_workers: int, name: str):
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._max_workers = max_workers
        self._name = name
        self._num_threads = 0
        self._num_idle = 0  # Less the tasks that wait for a thread.
        self._has_told = False
        self._lock = threading.Lock()
        self._start_thread()  # Without it, nothing would be answered if no more can be started.

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Runs `fn` in a thread of the pool; returns the future of its result."""
        future: futures.Future[Any] = futures.Future()
        self._tasks.put((future, fn, args, kwargs))
        self._change_idle(-1)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Lets idle threads end; never waits for busy ones."""
        with self._lock:
            for _ in range(self._num_threads):
                self._tasks.put(None)

    def _change_idle(self, change: int) -> None:
        with self._lock:
            self._num_idle += change
            if self._num_idle < 0 and self._num_threads < self._max_workers:
                self._start_thread()

    def _start_thread(self) -> None:
        name = f"{self._name}-{self._num_threads + 1}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as error:  # It would end gRPC's own thread. The next call tries again.
            if not self._num_threads:
                raise
            if not self._has_told:
                logger.warning("%s; calls handled at a time: %d", error, self._num_threads)
            self._has_told = True
        else:
            self._num_threads += 1
            self._num_idle += 1

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            _run(*task)
            del task  # Don't keep arguments alive while idle.
            self._change_idle(1)


def _run(
    future: futures.Future[Any],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # The future carries it to the waiter.
            future.set_exception(error)
