"""Access to the servers of a program on several machines, by its nodes and by strangers."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

import launchpad as lp
from launchpad import runtime as lp_runtime
from launchpad.nodes import tunnel
from launchpad.rpc import server as rpc_server
from tests.launchpad import programs
from tests.waiting import wait_until


def _tables():
    import reverb

    return [reverb.Table.queue("queue", 100)]


@pytest.fixture
def serve():
    """(function that runs a ReverbNode on "another machine", function that stops all of them)."""
    running = []

    def start(host: str, book: dict, node: lp.ReverbNode) -> None:
        runtime = programs.node_runtime(host, book)

        def execute() -> None:
            lp_runtime.set_thread_runtime(runtime)
            node.execute()

        thread = threading.Thread(target=execute)
        thread.start()
        running.append((runtime, thread))
        wait_until(lambda: book.get(node.reverb_address.key) or not thread.is_alive())

    def stop() -> None:
        while running:
            runtime, thread = running.pop()
            runtime.release_event.set()
            thread.join(60)

    yield start, stop
    stop()


def _client(host: str, book: dict, node: lp.ReverbNode):
    """Returns the client that a node on the machine with this address gets."""
    lp_runtime.set_thread_runtime(programs.node_runtime(host, book))
    try:
        return node.create_handle().dereference()
    finally:
        lp_runtime.set_thread_runtime(None)


def _refuses(address: str) -> bool:
    import reverb

    try:
        reverb.Client(address).server_info(timeout=2)
    except (reverb.errors.ReverbError, RuntimeError):  # RuntimeError if a connection breaks.
        return True
    return False


@pytest.mark.processes
def test_nodes_of_other_machines_reach_a_table_and_nobody_else_does(serve):
    start, stop = serve
    node, book = lp.ReverbNode(_tables), {}
    start("127.0.0.2", book, node)
    address = book.get(node.reverb_address.key)
    host, _, port = address.rpartition(":")
    assert host == "127.0.0.2"
    assert _client("127.0.0.2", book, node).server_address == f"127.0.0.1:{port}"
    far = _client("127.0.0.3", book, node)
    assert far.server_address not in (address, f"127.0.0.1:{port}")
    sent = [np.random.default_rng(seed).bytes(3_000_000) for seed in range(4)]
    for content in sent:
        far.insert([np.frombuffer(content, np.uint8)], {"queue": 1.0})
    got = [sample[0].data[0].tobytes() for sample in far.sample("queue", 4)]
    assert got == sent
    assert _refuses(address), "a client without the program's certificate"
    assert _refuses(tunnel.connect(address, b"w" * 32)), "a client of another program"
    stop()
    assert _refuses(far.server_address)
    start("127.0.0.2", book, node)  # As after a kill: on its old port, for its old clients.
    assert book.get(node.reverb_address.key) == address
    wait_until(lambda: not _refuses(far.server_address))
    assert far.server_info()["queue"].current_size == 0


# What a process on another machine attempts on the ports of a replay and of a node.
_STRANGER = """
import socket, ssl, sys
import grpc, reverb
from launchpad.nodes import tunnel
from launchpad.rpc import tls, wire
from launchpad.rpc import server as rpc_server

def attempt(what, do):
    try:
        print(what, "->", do())
    except Exception as error:
        print(what, "-> refused", type(error).__name__)

def read(address, secret):
    client = reverb.Client(address if secret is None else tunnel.connect(address, secret))
    # Raises where an insertion would wait for ever.
    client.server_info(timeout=5 if secret == b"w" * 32 else 60)
    client.insert([1.0], {"queue": 1.0})
    return client.server_info(timeout=60)["queue"].current_size

def call(address, secret):
    channel = grpc.insecure_channel(address)
    if secret is not None:
        channel = tls.channel(address, secret, "", [], None)
    is_own = secret == b"r" * 32
    body = wire.encode(b"", b"same", (("words",), {}))
    method = channel.unary_unary(rpc_server.CALL_PATH)
    return wire.decode(method(body, timeout=60 if is_own else 5, wait_for_ready=is_own), 1)

def read_some(connection):
    if not (found := connection.recv(100)) or found[0] == 21:  # An alert of TLS is no answer.
        raise ConnectionError
    return found

def greet(address):
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), 5) as plain:
        with context.wrap_socket(plain) as connection:
            connection.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")
            return read_some(connection)

replay, node = sys.argv[1:]
for name, secret in (("plain", None), ("other program", b"w" * 32), ("program", b"r" * 32)):
    if name != "plain":
        attempt(name + ": replay", lambda: read(replay, secret))
    attempt(name + ": call", lambda: call(node, secret))
attempt("no certificate: replay", lambda: greet(replay))
attempt("no certificate: call", lambda: greet(node))
with socket.create_connection(tuple([replay.split(":")[0], int(replay.split(":")[1])]), 60) as raw:
    raw.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(9))
    raw.settimeout(5)
    attempt("plain: replay", lambda: read_some(raw))
"""


@pytest.mark.processes
def test_a_stranger_on_another_machine_reads_writes_and_runs_nothing(serve, other_host):
    name, here, _ = other_host
    start, _ = serve
    node, book = lp.ReverbNode(_tables), {}
    start(here, book, node)
    server = rpc_server.MethodServer(programs.SECRET, f"{here}:0")
    calls = []
    server.bind("same", lambda value: calls.append(value) or value)
    server.start()
    try:
        replay = book.get(node.reverb_address.key)
        command = ["ip", "netns", "exec", name, sys.executable, "-c", _STRANGER]
        found = subprocess.run(
            [*command, replay, server.address], capture_output=True, text=True, timeout=110
        )
        lines = [line for line in found.stdout.splitlines() if "->" in line]
        assert lines.count("program: replay -> 1") == 1, found
        assert lines.count("program: call -> words") == 1, found
        refused = [line for line in lines if not line.startswith("program:")]
        assert len(refused) == 6 and all("refused" in line for line in refused), lines
        assert calls == ["words"]
    finally:
        server.stop()
