"""Calls the methods of a served object."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import itertools
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

from launchpad import address as lp_address
from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.rpc import server as rpc_server
from launchpad.rpc import tls, wire

logger = logging.getLogger("launchpad")

# How long calls wait for a server that went away, in seconds.
DEFAULT_RETRY_SECS = 60.0
# A hundred years. The clocks of gRPC count nanoseconds: infinity would expire immediately.
_LONGEST_TIMEOUT_SECS = 100 * 365 * 86400.0
# How long one attempt waits for the server's address, and for its connection, in seconds.
_ATTEMPT_SECS = 0.2
# How long connecting may take on a busy machine, in seconds.
_CONNECT_SECS = 5.0
# Pause after an attempt that found no server, in seconds.
_PAUSE_SECS = 0.1
# A request confirms at most this many answers, so that its metadata stays small.
_MAX_CONFIRMED = 64

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(1000 * _CONNECT_SECS)),  # Limits attempts, not pauses.
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Otherwise clients with equal options would share a connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # Calls that must not be sent twice are repeated here, or not.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class CourierClient:
    """A client of a CourierNode: `client.method(*args)` runs `method` on the served object.

    The first call waits for the server, and logs this every 10 s. An exception of the method is
    raised here with the server's traceback as its cause; it is a `StatusNotOk`, too.

    A call whose connection breaks is sent again for `retry_secs`, to the server's current address.
    A server that is still running runs it only once; a restarted server may run it a second time,
    if its predecessor died after running it. With `retry_secs=0`, nothing is sent twice: such a
    call raises CourierUnavailableError.

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
          server_address: "host:port" or "unix:PATH", or the address of a node.
          compress: gzip requests and answers.
          call_timeout: Deadline of each call in seconds; None or 0 for none.
          wait_for_ready: False to fail immediately if the server is not there.
          chunk_tensors: Accepted for compatibility with upstream; messages have no size limit.
          load_balancing_policy: Accepted for compatibility with upstream; a node has one server.
          propagate_deadline: Accepted for compatibility with upstream; a call has its client's
            deadline.
          retry_secs: How long a call waits for a server that went away, in seconds. A server
            forgets after an hour which calls it has run.
        """
        del load_balancing_policy, propagate_deadline
        self._init_args = (server_address, compress, call_timeout, wait_for_ready, chunk_tensors)
        self._retry_secs = retry_secs
        if isinstance(call_timeout, datetime.timedelta):
            call_timeout = call_timeout.total_seconds()
        self._connection = _Connection(
            server_address,
            min(call_timeout, _LONGEST_TIMEOUT_SECS) if call_timeout else None,
            retry_secs,
            wait_for_ready,
            compress,
        )
        self._futures = _FuturesClient(self._connection)

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self._init_args, self._retry_secs)

    def __repr__(self) -> str:
        stub = self._connection.stub
        return (
            f"CourierClient({self._connection.owner}, {stub.address if stub else 'not connected'})"
        )

    @property
    def address(self) -> str:
        """The server's "unix:PATH" or "host:port"; waits until it is known."""
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
          Exception: whatever the method raised; it is a StatusNotOk, too.
        """
        request = wire.encode(b"", method.encode(), (args, kwargs))
        return _unpack(self._connection.send(request))


class _FuturesClient:
    """Calls that return futures; see `CourierClient.futures`."""

    def __init__(self, owner: _Connection):
        self._connection = owner

    def __getattr__(self, method: str) -> Callable[..., futures.Future[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args, **kwargs: self._submit(method, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        return self._submit("__call__", args, kwargs)

    def _submit(self, method: str, args: Any, kwargs: Any) -> futures.Future[Any]:
        return self._connection.submit(wire.encode(b"", method.encode(), (args, kwargs)), _unpack)


def _unpack(answer: bytes) -> Any:
    """Returns the result of an encoded answer, or raises the exception that it holds."""
    value = wire.decode(answer, 1)
    if answer[:1] == wire.OK:
        return value
    error = value.rebuild()
    if not isinstance(error, Exception):  # The server's SystemExit must not end this process.
        error = errors.RemoteError(f"{value.type_name}: {value.message}")
    raise errors.as_status(error) from errors.RemoteTraceback(value.traceback_text)


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
    return client._connection.submit(request, lambda answer: answer)


class _Stub:
    """A gRPC channel to one address of a server.

    Attributes:
      address: "unix:PATH" or "host:port".
      call: Sends a request; see grpc.UnaryUnaryMultiCallable.
      failure: Why the last attempt to reach the server failed; empty if it did not.
    """

    def __init__(self, address: str, secret: bytes, identity: str, compress: bool):
        self.address = address
        self.failure = ""
        self._channel = tls.channel(
            address, secret, identity, list(_OPTIONS), rpc_server.COMPRESSION if compress else None
        )
        self.call: Any = self._channel.unary_unary(rpc_server.CALL_PATH)
        self._probe = self._channel.unary_unary("/launchpad.Courier/Probe")

    def is_ready(self, timeout: float) -> bool:
        """Returns whether the server answers; waits up to `timeout` seconds."""
        try:
            self._probe(b"", timeout=timeout)
            self.failure = ""
        except grpc.RpcError as error:  # A server that is there does not know the method.
            is_there = error.code() == grpc.StatusCode.UNIMPLEMENTED
            self.failure = "" if is_there else error.details() or error.code().name
        return not self.failure

    def close(self) -> None:
        """Ends the connection and cancels all calls on it."""
        self._channel.close()


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """One call, however often it is sent.

    Attributes:
      request: The encoded request.
      number: Its number, from 1; the calls of a client are told apart by it.
      unpack: Turns an encoded answer into the result of the call, or raises its exception.
      result: The future of its result.
      started: Monotonic time.
    """

    request: bytes
    number: int
    unpack: Callable[[bytes], Any]
    result: futures.Future[Any] = dataclasses.field(default_factory=futures.Future)
    started: float = dataclasses.field(default_factory=time.monotonic)

    def settle(self, outcome: bytes | Exception) -> None:
        """Ends the call with its encoded answer, or with the reason why there is none."""
        with contextlib.suppress(futures.InvalidStateError):  # Cancelled by its owner meanwhile.
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                value = self.unpack(outcome)
            except BaseException as error:  # The future carries it to whoever waits.
                self.result.set_exception(error)
            else:
                self.result.set_result(value)


class _Connection:
    """Sends the calls of one client to wherever its server is now. Thread-safe.

    Calls whose server is not there wait for it in a queue, from which one thread sends them again
    when it is found, and fails those that have waited too long. Until they are in the queue, calls
    need no thread.

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
        self._stub: _Stub | None = None
        self._target = target
        self._compress = compress
        self.runtime = lp_runtime.current() if isinstance(target, str) else target.runtime()
        self._lock = threading.Lock()
        self._client_id = secrets.token_bytes(16)
        self._numbers = itertools.count(1)
        self._answered: collections.deque[int] = collections.deque(maxlen=1000)
        self._waiting: list[_Call] = []
        self._has_thread = False

    @property
    def address(self) -> str:
        """The server's address; waits until it is known."""
        return self._target if isinstance(self._target, str) else self._target.resolve()

    @property
    def owner(self) -> str:
        """Name of the server in messages: its node's "label/index", or its address."""
        if isinstance(self._target, str):
            return self._target
        owners = self.runtime.info.owners if self.runtime else {}
        return owners.get(self._target.key, self._target.name or "server")

    @property
    def stub(self) -> _Stub | None:
        """The channel on which the server was reached; None before that."""
        self._join_program()
        return self._stub if self.was_reached else None

    def send(self, request: bytes) -> bytes:
        """Sends an encoded request until it is answered; returns the answer, still encoded.

        Raises:
          CourierDeadlineError: the deadline has passed.
          CourierUnavailableError: the server was gone for `retry_secs`, or is not there and the
            program is stopping.
          CourierAuthenticationError: the server belongs to another program.
        """
        call = _Call(request, next(self._numbers), bytes)
        stub = self.stub
        if stub is not None:
            try:
                metadata = self._metadata(call.number)
                answer = stub.call(request, timeout=self.timeout, metadata=metadata)
                self._answered.append(call.number)
                return answer
            except (grpc.RpcError, ValueError) as error:
                self._check_may_be_sent_again(call, error)
        # A stop raises SystemExit in this thread, wherever it is: it must hold no lock meanwhile,
        # and not wait without an end.
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        call.result.add_done_callback(lambda _: ended.put(None))
        self._wait(call)
        try:
            while not call.result.done():
                with contextlib.suppress(queue.Empty):
                    ended.get(timeout=_ATTEMPT_SECS)
            return call.result.result()
        finally:
            call.result.cancel()

    def submit(self, request: bytes, unpack: Callable[[bytes], Any]) -> futures.Future[Any]:
        """Sends an encoded request without waiting; returns the future of its result.

        Cancelling the future cancels the call: a handler that has not begun never runs.

        Args:
          request: The encoded request.
          unpack: Turns an encoded answer into the result of the call, or raises its exception.
        """
        call = _Call(request, next(self._numbers), unpack)
        call.result.add_done_callback(_tell_of_cancel)
        stub = self.stub
        if stub is None:
            self._wait(call)
        else:
            self._start(call, stub)
        return call.result

    def _start(self, call: _Call, stub: _Stub) -> None:
        try:
            metadata = self._metadata(call.number)
            rpc = stub.call.future(call.request, timeout=self._remaining(call), metadata=metadata)
        except ValueError:  # The channel was closed meanwhile.
            self._wait(call)
            return
        call.result.add_done_callback(lambda done: rpc.cancel() if done.cancelled() else None)
        rpc.add_done_callback(lambda rpc: self._finish(call, rpc))

    def _finish(self, call: _Call, rpc: Any) -> None:
        if call.result.cancelled():
            return
        with self._as_client():  # This may be any thread: gRPC's, or that of the caller.
            if rpc.code() == grpc.StatusCode.OK:
                self._answered.append(call.number)
                call.settle(rpc.result())
                return
            try:
                self._check_may_be_sent_again(call, rpc)
            except Exception as reason:
                call.settle(reason)
            else:
                self._wait(call)

    def _metadata(self, number: int) -> tuple[tuple[str, bytes | str], ...]:
        value = rpc_server.CALL.pack(self._client_id, number)
        for _ in range(min(len(self._answered), _MAX_CONFIRMED)):
            with contextlib.suppress(IndexError):  # Another thread confirms them.
                value += rpc_server.CONFIRMED.pack(self._answered.popleft())
        named = (rpc_server.CALL_KEY, value)
        return (named, rpc_server.COMPRESS) if self._compress else (named,)

    def _remaining(self, call: _Call) -> float | None:
        """Returns the seconds until the deadline of a call, or None without one."""
        if self.timeout is None:
            return None
        return max(0.001, self.timeout - (time.monotonic() - call.started))

    def _check_may_be_sent_again(self, call: _Call, error: Exception) -> None:
        """Raises the error of a call that failed with gRPC's, or with a ValueError if it closed."""
        code, details = grpc.StatusCode.CANCELLED, "it was closed"
        if isinstance(error, grpc.RpcError):
            code, details = error.code(), error.details()
        where = f"call of {wire.method_of(call.request)}() on {self.owner}"
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise errors.CourierDeadlineError(
                f"{where} took longer than {self.timeout:g} s: Deadline Exceeded"
            )
        if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            raise errors.CourierError(f"{where} failed: {code.name}: {details}")
        if self.retry_secs <= 0:
            raise errors.CourierUnavailableError(f"{where} lost its server: {details}")

    def _wait(self, call: _Call) -> None:
        with self._lock:
            self._waiting.append(call)
            if self._has_thread:
                return
            self._has_thread = True
        try:
            threading.Thread(target=self._resend, name="courier-resend", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._has_thread = False
                batch, self._waiting = self._waiting, []
            message = (
                f"{self._name}: a call of {self.owner} needs a thread: {error}; raise the limit on "
                "processes (ulimit -u) or on memory (ulimit -v)"
            )
            for waiting in batch:
                waiting.settle(errors.CourierError(message))

    def _resend(self) -> None:
        """Sends the waiting calls once their server is found, or ends them; until none is left."""
        started = told = time.monotonic()
        lost_at: float | None = None
        while True:
            with self._lock:
                if not self._waiting:
                    self._has_thread = False
                    return
                left = [self._remaining(call) or 1.0 for call in self._waiting]
            with self._as_client():
                stub, failure = None, None
                try:
                    stub = self._reach(min(_ATTEMPT_SECS, *left))
                except Exception as error:  # For example, the program is stopping.
                    failure = error
                now = time.monotonic()
                # The first server may take as long as it likes.
                lost_at = None if stub or not self.was_reached else lost_at or now
                with self._lock:
                    batch, self._waiting = self._waiting, []
                for call in batch:
                    if call.result.cancelled():
                        continue
                    if stub is not None:
                        self._start(call, stub)
                    elif reason := failure or self._reason_to_give_up(call, lost_at):
                        call.settle(reason)
                    else:
                        self._wait(call)
            if stub is None:
                if now - told > lp_runtime.WAIT_MESSAGE_SECS:
                    told = now
                    logger.warning(
                        "%s: waiting for the server of %s (%.0f s)",
                        self._name,
                        self.owner,
                        now - started,
                    )
                time.sleep(_PAUSE_SECS)

    @property
    def _name(self) -> str:
        return self.runtime.name if self.runtime else "client"

    def _reason_to_give_up(self, call: _Call, lost_at: float | None) -> Exception | None:
        """Returns why a call should not wait for its server any more, if there is a reason."""
        where, now = f"{self._name}: the server of {self.owner}", time.monotonic()
        why = f": {self._stub.failure}" if self._stub is not None and self._stub.failure else ""
        if self.runtime is not None and self.runtime.stop_event.is_set():
            return errors.CourierUnavailableError(f"{where} is gone and the program is stopping")
        is_lost = lost_at is not None and now - lost_at >= self.retry_secs
        if is_lost or not self.wait_for_ready:
            return errors.CourierUnavailableError(f"{where} can't be reached{why}")
        if self.timeout is not None and now - call.started >= self.timeout:
            return errors.CourierDeadlineError(
                f"{where} was not reached in {self.timeout:g} s: Deadline Exceeded{why}"
            )
        return None

    def _reach(self, timeout: float) -> _Stub | None:
        """Returns the channel on which the server answers; None if there is none yet.

        Raises:
          CourierUnavailableError: the program is stopping and the address is not known.
          CourierAuthenticationError: the process at the given "host:port" is not of this program.
        """
        self._join_program()
        address, identity = self._target, ""
        if not isinstance(address, str):
            identity = address.key
            try:
                address = address.resolve(timeout if self.wait_for_ready else 0.0)
            except TimeoutError:
                return None
            except errors.ProgramStoppedError as error:
                raise errors.CourierUnavailableError(str(error)) from error
        stub = self._stub
        if stub is None or stub.address != address:
            secret = self.runtime.info.secret if self.runtime else tls.secret_of_user()
            self._stub = _Stub(address, secret, identity, self._compress)
            if stub is not None:
                stub.close()
            stub = self._stub
        if stub.is_ready(timeout if self.wait_for_ready else max(timeout, _CONNECT_SECS)):
            self.was_reached = True
            return stub
        if not identity and "handshake failed" in stub.failure:
            raise errors.CourierAuthenticationError(
                f"the server at {address} does not know this program's secret ({stub.failure}); "
                "set LAUNCHPAD_SECRET for both sides"
            )
        return None

    @contextlib.contextmanager
    def _as_client(self) -> Iterator[None]:
        """Makes the client's runtime the current one of this thread."""
        before = lp_runtime.set_thread_runtime(self.runtime)
        try:
            yield
        finally:
            lp_runtime.set_thread_runtime(before)

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
        if runtime not in (None, self.runtime):
            self.runtime, self.was_reached = runtime, False


def _tell_of_cancel(done: futures.Future[Any]) -> None:
    """Wakes waits for several futures: `cancel()` itself wakes only waits for this future."""
    if done.cancelled():
        done.set_running_or_notify_cancel()
