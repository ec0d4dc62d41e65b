"""A connection to a server, through gRPC or within the process."""

from __future__ import annotations

from concurrent import futures
from typing import Any

import grpc

from launchpad.rpc import server as rpc_server
from launchpad.rpc import wire

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class Link:
    """One connection to a server: through gRPC, or directly where it lives in this process.

    The direct way still pickles, so that callers never share objects with the server.
    """

    def __init__(self, address: str, compression: Any):
        """Prepares; connects at the first call.

        Args:
          address: "host:port".
          compression: gRPC's setting.
        """
        self.address = address
        self._compression = compression
        self._server = rpc_server.local_server(address)
        self._channel: grpc.Channel | None = None
        if self._server is None:
            self._channel = grpc.insecure_channel(
                address, options=list(_OPTIONS), compression=compression
            )
            self._method = self._channel.unary_unary(rpc_server.CALL_PATH)

    @property
    def is_local(self) -> bool:
        return self._server is not None

    def call(self, request: bytes, timeout: float | None) -> bytes:
        if self._server is None:
            return self._method(request, timeout=timeout)
        if request[: wire.TOKEN_BYTES] != self._server.token:
            raise LocalRpcError(grpc.StatusCode.UNAUTHENTICATED, "wrong token")
        if timeout is None:
            answer = self._server.call_in_process(request)
        else:
            future = self._server.submit_in_process(request)
            try:
                answer = future.result(timeout)
            except futures.TimeoutError:
                if not future.done():
                    raise LocalRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, "timed out") from None
                raise
        if answer is None:
            raise LocalRpcError(grpc.StatusCode.UNAVAILABLE, "the server has stopped")
        return answer

    def start(self, request: bytes, timeout: float | None) -> Any:
        return self._method.future(request, timeout=timeout)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()


class LocalRpcError(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str):
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details
