"""Measures remote calls against raw grpcio: `python -m launchpad.rpc.benchmark`.

Both servers are processes of this machine; short rounds alternate, so that other load hits both.
Servers differ from start to start by more than from one another, so several pairs are compared.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import grpc
import numpy as np

import launchpad as lp

_ROUND_SECS = 0.5
_NUM_ROUNDS = 6
_NUM_PAIRS = 4
_FETCH_BYTES = 10_000_000

_Round = tuple[float, float]  # Calls per second, ours and raw.

_RAW_SERVER = f"""
import sys
from concurrent import futures
import grpc
import numpy as np

answer = b"x" * {_FETCH_BYTES}  # Not bytes(n): fresh zeros are one page of memory, many times.
array = np.ones({_FETCH_BYTES} // 4, np.float32)

methods = dict(
    same=lambda request, context: request,
    fetch_bytes=lambda request, context: answer,
    fetch_array=lambda request, context: array.tobytes(),
)

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(methods[details.method.lstrip("/")])

server = grpc.server(
    futures.ThreadPoolExecutor(16),
    handlers=(Handler(),),
    options=[("grpc.max_send_message_length", -1)],
)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"""


class Service:
    """Answers small calls, and fetches of 10 MB."""

    def __init__(self) -> None:
        self._array = np.ones(_FETCH_BYTES // 4, np.float32)

    def same(self, value: object) -> object:
        """Returns its argument."""
        return value

    def fetch(self) -> np.ndarray:
        """Returns 10 MB of float32."""
        return self._array


def _rate(call: Callable[[], object]) -> float:
    calls, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < _ROUND_SECS:
        call()
        calls += 1
    return calls / elapsed


def _measure_pair(program: lp.Program, handle: lp.CourierHandle) -> dict[str, list[_Round]]:
    """Returns the rounds of one server of ours and one raw server, by the kind of call."""
    with _raw_channel() as channel:
        manager = lp.launch(program, "test_mp")
        client = manager.resolve(handle)
        same = channel.unary_unary("/same")
        fetch_bytes = channel.unary_unary("/fetch_bytes")
        fetch_array = channel.unary_unary("/fetch_array")
        kinds: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "small calls": (lambda: client.same(1), lambda: same(b"x" * 80)),
            "10 MB, raw bytes at hand": (client.fetch, lambda: fetch_bytes(b"")),
            "10 MB, raw from an array": (
                client.fetch,
                lambda: np.frombuffer(fetch_array(b""), np.float32),
            ),
        }
        rounds = {}
        for kind, (ours, raw) in kinds.items():
            ours(), raw()
            rounds[kind] = [(_rate(ours), _rate(raw)) for _ in range(_NUM_ROUNDS)]
        manager.stop_and_wait()
    return rounds


@contextlib.contextmanager
def _raw_channel() -> Iterator[grpc.Channel]:
    server = subprocess.Popen(
        [sys.executable, "-c", _RAW_SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None and server.stdout is not None
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{int(server.stdout.readline())}", options) as channel:
        yield channel
    server.stdin.close()
    server.wait()


def main() -> None:
    """Prints calls per second, ours and raw, and their ratio."""
    program = lp.Program("benchmark")
    handle = program.add_node(lp.CourierNode(Service), label="service")
    pairs = [_measure_pair(program, handle) for _ in range(_NUM_PAIRS)]
    for kind in pairs[0]:
        rounds = [one for pair in pairs for one in pair[kind]]
        our_rate, raw_rate = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratio = statistics.median(our / other for our, other in rounds)
        print(f"{kind}: {our_rate:.0f}/s, raw grpcio {raw_rate:.0f}/s, median ratio {ratio:.2f}")

    manager = lp.launch(program, "test_mt")
    client = manager.resolve(handle)
    client.fetch()
    print(f"threads: {_rate(lambda: client.same(1)):.0f} small calls/s", end=", ")
    print(f"{_rate(client.fetch):.0f} fetches of 10 MB/s")
    manager.stop_and_wait()


if __name__ == "__main__":
    main()
