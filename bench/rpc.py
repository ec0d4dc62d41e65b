"""Remote calls of `launchpad` against raw gRPC: small ones, and fetches of 10 MB.

    python -m bench.rpc

Both servers are processes of this machine; ours is reached over a Unix socket, the other over TCP.
A server's speed varies more from start to start than between the two kinds, so three pairs of
servers are measured, each in all rounds. Raw gRPC sends 10 MB of prepared bytes, or an array that
it must convert to bytes, as ours does. The last sides call a service in a thread of this process.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import grpc
import numpy as np

import launchpad as lp
from bench import harness

_SECONDS = 0.3  # Duration of a sample.
_NUM_PAIRS = 3
_FETCH_BYTES = 10_000_000
_CALLS = harness.Unit("calls/s")

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


def _side(call: Callable[[], object]) -> harness.Side:
    def sample():
        calls, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < _SECONDS:
            call()
            calls += 1
        return {_CALLS: calls / elapsed}

    return sample


def _measure_pair(program: lp.Program, handle: lp.CourierHandle, rounds: int) -> harness.Samples:
    """Returns the samples of one of our servers and one raw server."""
    with _raw_channel() as channel:
        manager = lp.launch(program, "test_mp")
        client = manager.resolve(handle)
        same = channel.unary_unary("/same")
        fetch_bytes = channel.unary_unary("/fetch_bytes")
        fetch_array = channel.unary_unary("/fetch_array")
        calls: dict[str, Callable[[], object]] = {
            "small calls": lambda: client.same(1),
            "small calls, raw gRPC": lambda: same(b"x" * 80),
            "10 MB": client.fetch,
            "10 MB, raw gRPC from an array": (lambda: np.frombuffer(fetch_array(b""), np.float32)),
            "10 MB, raw gRPC from bytes": lambda: fetch_bytes(b""),
        }
        sides = {name: _side(call) for name, call in calls.items()}
        samples = harness.measure(sides, rounds)
        manager.stop_and_wait()
    return samples


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
    """Measures processes, and then threads."""
    options = harness.parser("rpc", __doc__).parse_args()
    report = harness.Report("rpc", options)
    program = lp.Program("benchmark")
    handle = program.add_node(lp.CourierNode(Service), label="service")
    pairs = [_measure_pair(program, handle, options.rounds) for _ in range(_NUM_PAIRS)]
    samples = {
        name: {_CALLS: [rate for pair in pairs for rate in pair[name][_CALLS]]} for name in pairs[0]
    }
    peers = {"small calls": "small calls, raw gRPC", "10 MB": "10 MB, raw gRPC from an array"}
    report.add(samples, peers)
    manager = lp.launch(program, "test_mt")
    client = manager.resolve(handle)
    sides = {
        "small calls, in threads": _side(lambda: client.same(1)),
        "10 MB, in threads": _side(client.fetch),
    }
    report.add(harness.measure(sides, options.rounds))
    manager.stop_and_wait()
    report.write()


if __name__ == "__main__":
    main()
