"""A connection to a server."""

from __future__ import annotations

from typing import Any

import grpc

from launchpad.rpc import certificates, credentials, wire
from launchpad.rpc import server as rpc_server

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A host whose network falls silent closes no connection. These detect it within ten seconds.
    ("grpc.keepalive_time_ms", 4000),
    ("grpc.keepalive_timeout_ms", 6000),
    ("grpc.http2.ping_timeout_ms", 6000),
    ("grpc.http2.max_pings_without_data", 0),
    # Otherwise links with equal options would share a connection, and closing one would not end it.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class UnverifiedAnswerError(Exception):
    """The answer does not come from a process that has the program's secret."""


class Link:
    """One connection to a server, which signs requests and verifies answers.

    Attributes:
      address: "host:port".
      was_ready: Whether the server has accepted a connection.
    """

    def __init__(self, address: str, secret: bytes, identity: bytes, compress: bool):
        """Connects only at the first call.

        Args:
          address: "host:port".
          secret: The secret of the program.
          identity: The identity of the intended server; empty for any server of the program.
          compress: Whether requests and answers are compressed.
        """
        self.address = address
        self.was_ready = False
        self._secret = secret
        self._identity = identity
        self._compress = compress
        self._nonce = b""  # Unknown before the server has refused a call.
        self._channel = certificates.channel(
            address, secret, list(_OPTIONS), rpc_server.COMPRESSION if compress else None
        )
        self._method = self._channel.unary_unary(rpc_server.CALL_PATH)

    def start(self, request: bytes, ticket: credentials.Ticket, timeout: float | None) -> Any:
        """Sends a request; returns gRPC's call, which is a future.

        Raises:
          ValueError: the link is closed.
        """
        metadata = self._metadata(request, ticket)
        return self._method.future(request, timeout=timeout, metadata=metadata)

    def call(self, request: bytes, ticket: credentials.Ticket, timeout: float | None) -> bytes:
        """Sends a request and returns the verified answer.

        Raises:
          grpc.RpcError: the call failed.
          ValueError: the link is closed.
          UnverifiedAnswerError: a process other than the intended one has answered.
        """
        try:
            answer, call = self._method.with_call(
                request, timeout=timeout, metadata=self._metadata(request, ticket)
            )
        except grpc.RpcError as error:
            if not self.learn_nonce(error):
                raise
            answer, call = self._method.with_call(
                request, timeout=timeout, metadata=self._metadata(request, ticket)
            )
        return self.verified(answer, call, ticket)

    def learn_nonce(self, refused: Any) -> bool:
        """Returns whether a call that failed did so because the server's nonce was not known."""
        if nonce := credentials.told_nonce(refused.trailing_metadata()):
            self._nonce = nonce
        return bool(nonce)

    def _metadata(
        self, request: bytes, ticket: credentials.Ticket
    ) -> tuple[tuple[str, bytes | str], ...]:
        signed = credentials.sign_request(
            self._secret, self._identity, ticket, self._nonce, wire.pickled_part(request, 0)
        )
        return (*signed, rpc_server.COMPRESS) if self._compress else signed

    def verified(self, answer: bytes, call: Any, ticket: credentials.Ticket) -> bytes:
        """Returns the answer of a call that has ended.

        Raises:
          UnverifiedAnswerError: a process other than the intended one has answered.
        """
        try:
            pickled = wire.pickled_part(answer, 1)
        except ValueError:
            pickled = memoryview(b"")
        metadata = call.trailing_metadata()
        if not credentials.is_answer_of(self._secret, ticket, pickled, metadata):
            raise UnverifiedAnswerError
        return answer

    def is_ready(self, timeout: float) -> bool:
        """Returns whether the server accepts connections; waits up to `timeout` seconds."""
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout)
        except grpc.FutureTimeoutError:
            return False
        finally:
            ready.cancel()
        self.was_ready = True
        return True

    def close(self) -> None:
        """Ends the connection and cancels all calls on it."""
        self._channel.close()
