"""Remote calls: values, errors, deadlines, secrets."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime
import enum
import gc
import os
import pathlib
import pickle
import socket
import threading
import time
import types
import uuid
import weakref

import cloudpickle
import grpc
import numpy as np
import psutil
import pytest

import launchpad as lp
from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.nodes import courier as courier_node
from launchpad.rpc import client as rpc_client
from launchpad.rpc import server as rpc_server
from launchpad.rpc import tls, wire
from tests.launchpad import programs
from tests.waiting import run_python, wait_until


@pytest.fixture
def service():
    """A client of programs.Service."""
    program = lp.Program("test")
    handle = program.add_node(
        lp.CourierNode(programs.Service, courier_kwargs={"thread_pool_size": 8}), label="service"
    )
    manager = lp.launch(program, "test_mt")
    yield manager.resolve(handle)
    manager.stop_and_wait()


@pytest.fixture
def serve():
    """Starts servers, which end with the test."""
    servers = []

    def start(address: str = "127.0.0.1:0", secret: bytes = programs.SECRET, **kwargs):
        servers.append(rpc_server.MethodServer(secret, address, **kwargs))
        servers[-1].bind("same", lambda value: value)
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def test_arguments_and_results(service):
    assert service.echo(1, "two", key=None) == ((1, "two"), {"key": None})
    assert service.same(lambda x: x + 1)(1) == 2  # Functions are sent by value.
    assert service.futures.same([3]).result(timeout=60) == [3]
    again = pickle.loads(pickle.dumps(service))
    assert again.same("x") == "x" and again.address == service.address
    patient = lp.CourierClient(service.address, call_timeout=datetime.timedelta.max)
    assert patient.same(1) == 1 and patient.futures.same(2).result(60) == 2
    assert not hasattr(service, "__array__") and not hasattr(service, "_private")
    methods = rpc_client.list_methods(service)
    assert "echo" in methods and not {"value", "costly", "dear"} & set(methods)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (500, 700)])
def test_arrays_arrive_equal_writable_and_unshared(service, shape):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    strided = np.stack([array, array], axis=-1)[..., 0]
    sent = {"a": array, "fortran": np.asfortranarray(array), "strided": strided}
    received = service.same(sent)
    for name, value in sent.items():
        np.testing.assert_array_equal(received[name], value, strict=True)
        assert received[name].flags.writeable
        assert not np.shares_memory(received[name], value)


class _Disk(errors.LaunchpadError, OSError):
    def __init__(self, code, name="?"):
        super(RuntimeError, self).__init__(code, f"disk {name}")


class _Pair(Exception):
    def __init__(self, one, *, two):
        super().__init__(f"{one} and {two}")
        self.both = [one, two]


class _Mute(Exception):
    def __str__(self):
        raise ValueError("no message")


def test_an_exception_of_the_server_is_raised_as_its_own_and_as_upstreams(service):
    with pytest.raises(KeyError, match="some text") as caught:
        service.fail("some text")
    assert "raise KeyError(text)" in str(caught.value.__cause__)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert isinstance(error, errors.StatusNotOk) and isinstance(error, KeyError)
        assert error.args == ("some text",) and type(error).__name__ == "KeyError"
        assert isinstance(error.code, int)
    with pytest.raises(lp.RemoteError, match="1 and 2"):
        service.fail_unpicklable()
    with pytest.raises(AttributeError, match=r"method missing not found; .*echo"):
        service.missing()
    with pytest.raises(KeyError, match="later"):
        service.futures.fail("later").result(timeout=60)
    assert service.same(1) == 1


@pytest.mark.parametrize(
    "error",
    [_Disk(5, "sda"), _Pair(1, two=2), RuntimeError("a"), ExceptionGroup("all", [_Pair(1, two=2)])],
)
def test_an_exception_keeps_type_message_and_attributes_whatever_its_init_takes(error):
    for each in (errors.ExceptionRecord.of(error).rebuild(), errors.as_status(error)):
        assert isinstance(each, type(error)) and str(each) == str(error)
        assert each.args[:1] == error.args[:1] and vars(each) == vars(error)
    assert isinstance(errors.as_status(error), errors.StatusNotOk)
    assert isinstance(errors.ExceptionRecord.of(_Mute()).rebuild(), _Mute)


def _classes():
    """Returns classes that cannot be imported and use one another, a lock and shared state."""
    lock, state = threading.Lock(), {"touched": 0}

    class Base:
        total = 0

        def copy(self):
            return Item()

        def touch(self):
            with lock:
                state["touched"] += 1
                return state["touched"]

    class Item(Base):
        kind = enum.Enum("Kind", "SMALL LARGE")

    class ItemError(Exception):
        total = 0

    return Base, Item, ItemError


def test_a_call_does_not_reset_the_classes_that_it_carries():
    """Previously, class attributes were reset to their values at the time of the call."""
    base, item, error = _classes()
    sent = wire.encode(b"", b"", (item(), item.kind.LARGE))
    record = errors.ExceptionRecord.of(error("text"))
    base.total = error.total = 5
    received, kind = wire.decode(sent, 0)
    assert type(received) is item and kind is item.kind.LARGE
    assert type(record.rebuild()) is error
    assert base.total == item.total == error.total == 5
    # A lock does not pickle, and the methods must not see copies of their globals.
    assert [received.touch(), item().touch(), received.copy().touch()] == [1, 2, 3]


def test_a_class_that_the_receiver_does_not_have_is_made_once(monkeypatch):
    base, item, _ = _classes()
    needs_a_lock = wire.encode(b"", b"", item())
    del base.touch
    sent = wire.encode(b"", b"", [item(), item.kind.LARGE, base()])
    here = weakref.WeakValueDictionary()
    monkeypatch.setattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", here)
    with pytest.raises(TypeError, match=r"class .*Item of another process.*'_thread.lock' object"):
        wire.decode(needs_a_lock, 0)
    received, kind, plain = wire.decode(sent, 0)
    made = type(received)
    assert made is not item and made.__bases__ == (type(plain),) and type(received.copy()) is made
    assert kind is made.kind.LARGE
    type(plain).total = 7
    del received, kind, plain
    gc.collect()  # Nothing else refers to the class, which keeps its attributes.
    assert type(wire.decode(sent, 0)[0]) is made and made.total == 7


def test_a_deadline_ends_a_call(service):
    hasty = lp.CourierClient(service.address, call_timeout=0.3)

    def is_reached():
        with contextlib.suppress(lp.CourierDeadlineError):  # A busy machine connects slowly.
            return hasty.same(True)

    wait_until(is_reached)
    with pytest.raises(
        lp.CourierDeadlineError, match=r"block\(\) on unix.* longer than 0.3 s: Deadline Exceeded"
    ):
        hasty.block(60)
    assert isinstance(lp.CourierDeadlineError(""), TimeoutError)
    service.release()


def test_calls_run_at_the_same_time_and_can_be_cancelled(service):
    waiting = [service.futures.block(60) for _ in range(3)]
    cancelled, late = service.futures.block(60), service.futures.block(60)
    assert cancelled.cancel() and cancelled.cancel()
    threading.Timer(0.3, late.cancel).start()
    # Also those who wait for several futures hear of it.
    done = concurrent.futures.as_completed([cancelled, late], timeout=60)
    assert set(done) == {cancelled, late}
    service.release()
    assert [w.result(timeout=60) for w in waiting] == [True, True, True]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(service.same, range(200))) == list(range(200))


@pytest.fixture
def runtime():
    """A node's runtime in this thread; its program has the secret of `serve`."""
    made = programs.node_runtime()
    lp_runtime.set_thread_runtime(made)
    yield made
    lp_runtime.set_thread_runtime(None)


class _Exploding:
    """Sets a flag when it is unpickled."""

    unpickled = False

    def __reduce__(self):
        return _explode, ()


def _explode() -> None:
    _Exploding.unpickled = True


class _Stranger(grpc.GenericRpcHandler):
    """Takes the port of a dead node, keeps all calls, and answers with a pickle that runs code."""

    def __init__(self, address: str, kind: str):
        self.calls = []
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=(self,))
        if kind == "plain":
            assert self._server.add_insecure_port(address)
        else:  # With the certificates of another program, or those of another node of this one.
            secret, identity = (
                (b"w" * 32, "node") if kind == "other program" else (programs.SECRET, "other")
            )
            assert tls.add_port(self._server, address, secret, identity)
        self._server.start()

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request, context):
        self.calls.append(request)
        return wire.encode(wire.OK, b"", _Exploding())

    def stop(self):
        self._server.stop(0).wait()


@pytest.mark.parametrize("kind", ["plain", "other program", "other node"])
def test_a_stranger_at_the_port_of_a_dead_node_gets_no_calls(runtime, serve, kind):
    """It collects nothing that it could send to the node's successor, and answers nothing."""
    server, address = serve(identity="node"), lp.Address()
    address.key = "node"
    runtime.publish("node", server.address)
    client = lp.CourierClient(address)
    assert client.same(1) == 1
    server.stop()
    stranger, successor = _Stranger(server.address, kind), serve(identity="node")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            answer = pool.submit(client.same, 2)
            with pytest.raises(concurrent.futures.TimeoutError):
                answer.result(1)
            runtime.publish("node", successor.address)
            assert answer.result(60) == 2
            assert not stranger.calls and not _Exploding.unpickled
        finally:
            runtime.publish("node", successor.address)
            stranger.stop()


# What another account attempts: to call a server, which may tell it to run code.
_OTHER_ACCOUNT = """
import os, socket, sys
import grpc
from launchpad.rpc import tls
os.setgroups([]), os.setgid(65534), os.setuid(65534)
address = sys.argv[1]
if address.startswith("unix:"):
    with socket.socket(socket.AF_UNIX) as plain:
        try:
            plain.connect(address.removeprefix("unix:"))
            print("connected")
        except OSError as error:
            print(type(error).__name__)
channels = [grpc.insecure_channel(address)]
if not address.startswith("unix:"):
    channels.append(tls.channel(address, b"w" * 32, "", [], None))
for channel in channels:
    try:
        channel.unary_unary("/launchpad.Courier/Call")(b"", timeout=20)
        print("answered")
    except grpc.RpcError as error:
        print(error.code().name)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
@pytest.mark.parametrize("way", ["socket", "port"])
def test_another_account_is_refused(serve, way):
    at = tls.socket_address(uuid.uuid4().hex) if way == "socket" else "127.0.0.1:0"
    server = serve(at)
    runs = []
    server.bind("", lambda: runs.append(None))
    found = run_python("-c", _OTHER_ACCOUNT, server.address)
    first = "PermissionError" if way == "socket" else "UNAVAILABLE"
    assert found.stdout.split() == [first, "UNAVAILABLE"], found
    assert not runs


def _listening_ports() -> set:
    return {each.laddr for each in psutil.Process().net_connections() if each.status == "LISTEN"}


def test_a_program_on_one_machine_listens_on_no_port(request):
    before = _listening_ports()  # Of the Ray that the tests of this process share.
    service = request.getfixturevalue("service")
    assert service.same(1) == 1 and service.address.startswith("unix:/tmp/launchpad-")
    assert _listening_ports() <= before
    folder = pathlib.Path(service.address.removeprefix("unix:")).parent
    assert folder.stat().st_mode & 0o777 == 0o700


def test_sockets_of_killed_processes_are_removed():
    path = pathlib.Path(tls.socket_address(uuid.uuid4().hex).removeprefix("unix:"))
    young, alive = path.with_name(uuid.uuid4().hex), path.with_name(uuid.uuid4().hex)
    made = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for each, at in zip(made, (path, young, alive), strict=True):
        each.bind(str(at))
    made[2].listen()
    made[0].close()
    made[1].close()
    for each in (path, alive):
        os.utime(each, (1e9, 1e9))
    tls.socket_address("another")
    assert not path.exists() and young.exists() and alive.exists()
    made[2].close()
    young.unlink()
    alive.unlink()


def test_sockets_that_others_can_replace_are_not_used(serve, tmp_path):
    tmp_path.chmod(0o755)
    server = serve(f"unix:{tmp_path}/s")
    with pytest.raises(PermissionError, match="must be a folder that only this user can enter"):
        lp.CourierClient(server.address).same(1)


def test_a_client_of_another_program_is_refused(runtime, serve):
    server = serve(secret=b"w" * 32)
    for call in (lambda c: c.same(1), lambda c: c.futures.same(1).result(60)):
        with pytest.raises(lp.CourierAuthenticationError, match="set LAUNCHPAD_SECRET") as caught:
            call(lp.CourierClient(server.address))
        assert caught.value.code == 16


def _send(server, body, number=1, client=b"c" * 16, confirmed=()):
    """Sends a call as a client would, perhaps again; returns the value of its answer."""
    value = rpc_server.CALL.pack(client, number)
    value += b"".join(rpc_server.CONFIRMED.pack(each) for each in confirmed)
    with contextlib.closing(tls.channel(server.address, programs.SECRET, "", [], None)) as channel:
        send = channel.unary_unary(rpc_server.CALL_PATH)
        metadata = ((rpc_server.CALL_KEY, value),)
        answer = send(body, timeout=60, metadata=metadata, wait_for_ready=True)
    return wire.decode(answer, 1)


def test_a_repeated_call_runs_once(serve, monkeypatch):
    """A client that lost its connection sends the same call again, on a new one."""
    runs = []

    def slow(value):
        runs.append(value)
        time.sleep(0.5 if len(runs) == 1 else 0.0)
        return [value, len(runs)]

    server = serve()
    server.bind("slow", slow)
    server.bind("large", lambda: runs.append(0) or bytes(3000))
    body = wire.encode(b"", b"slow", ((7,), {}))
    large = wire.encode(b"", b"large", ((), {}))
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        both = [pool.submit(_send, server, body) for _ in range(3)]
        answers = [each.result() for each in both]
    answers.append(_send(server, body))  # Ended; its answer is kept.
    assert answers == [[7, 1]] * 4
    assert _send(server, body, number=2) == [7, 2] and _send(server, body) == [7, 1]
    assert _send(server, body, client=b"d" * 16) == [7, 3]
    # Answers that the client has are dropped; so are the oldest, if there are too many.
    assert _send(server, body, number=3, confirmed=(1, 2)) == [7, 4]
    assert _send(server, body) == [7, 5] and _send(server, body, client=b"d" * 16) == [7, 3]
    monkeypatch.setattr(rpc_server, "MAX_KEPT_BYTES", 10_000)
    for client in range(3):
        _send(server, large, client=b"%016d" % client)
    assert _send(server, body, client=b"d" * 16) == [7, 9]
    monkeypatch.setattr(rpc_server, "MAX_BYTES", 1000)
    for _ in range(2):
        _send(server, large, client=b"e" * 16)
    assert len(runs) == 11


def test_processes_outside_a_program_share_the_secret_of_their_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = tls.secret_of_user()
    assert len(first) == 32 and tls.secret_of_user() == first
    (file,) = (tmp_path / "rl-replicator").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv(tls.SECRET_VARIABLE, "ab" * 32)
    assert tls.secret_of_user() == b"\xab" * 32
    monkeypatch.setenv(tls.SECRET_VARIABLE, "secret")
    with pytest.raises(ValueError, match="expected LAUNCHPAD_SECRET with 64 hexadecimal digits"):
        tls.secret_of_user()
    monkeypatch.delenv(tls.SECRET_VARIABLE)
    file.write_bytes(b"")  # As after a crash of the machine: everybody knows this secret.
    with pytest.raises(ValueError, match=r"expected a secret of 32 bytes in .*, got 0 bytes; rem"):
        tls.secret_of_user()


def test_nodes_and_others_who_know_the_secret_call_each_other(monkeypatch):
    monkeypatch.setenv(tls.SECRET_VARIABLE, "ab" * 32)
    server = rpc_server.Server()
    server.Bind("double", lambda value: 2 * value)
    server.Start()
    program, recorder = programs.recorder_program()
    program.add_node(lp.PyNode(programs.call_server, server.address, recorder), label="caller")
    manager = lp.launch(program, "test_mt")
    try:
        assert manager.wait(labels_to_wait_for=["caller"], timeout=60)
        address = manager.resolve(recorder).address
        monkeypatch.setattr(lp_runtime, "_launcher_runtimes", [])  # As if in another process.
        assert lp.CourierClient(address).entries() == [42]
    finally:
        monkeypatch.undo()
        manager.stop_and_wait()
        server.Stop()


class _Proxy:
    """Forwards bytes between clients and a server; can cut connections, or go silent."""

    def __init__(self, target: str):
        host, _, port = target.partition(":")
        self.target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self.is_silent = False
        self.has_server = threading.Event()  # Until it is set, new connections lead nowhere.
        self.has_server.set()
        self.num_bytes = 0
        self.sent: list[bytes] = []  # By clients.
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
                assert self.has_server.wait(60)
                far = socket.create_connection(self.target)
            except OSError:
                return
            self._sockets += [near, far]
            for way in ((near, far, self.sent), (far, near, [])):
                threading.Thread(target=self._pump, args=way, daemon=True).start()

    def _pump(self, source, sink, kept):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                kept.append(data)
                self.num_bytes += len(data)
                if not self.is_silent:
                    sink.sendall(data)

    def cut(self):
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def close(self):
        self._listener.close()
        self.cut()


@pytest.fixture
def proxied(serve):
    """(server, proxy in front of it, list with an entry for each run of its method `count`)."""
    runs = []

    def count(secs):
        runs.append(secs)
        time.sleep(secs)
        return len(runs)

    server = serve()
    server.bind("count", count)
    proxy = _Proxy(server.address)
    yield server, proxy, runs
    proxy.close()


def test_a_call_whose_connection_breaks_is_counted_once(runtime, proxied):
    server, proxy, runs = proxied
    was_cut = threading.Event()

    def hold():
        """Returns some time after the cut, so that the client finds the call still running."""
        runs.append(None)
        assert was_cut.wait(60)
        time.sleep(0.5)
        return len(runs)

    server.bind("hold", hold)

    def cut_amid_next_call(before):
        """Cuts once the server has begun the call, however long that takes on a busy machine."""
        was_cut.clear()

        def cut():
            wait_until(lambda: len(runs) > before)
            proxy.cut()
            was_cut.set()

        threading.Thread(target=cut).start()

    client = lp.CourierClient(proxy.address)
    assert client.count(0) == 1
    for call in (client.hold, lambda: client.futures.hold().result(60)):
        before = len(runs)
        cut_amid_next_call(before)
        assert call() == before + 1
        assert len(runs) == before + 1
    hasty = lp.CourierClient(proxy.address, retry_secs=0)
    cut_amid_next_call(len(runs))
    with pytest.raises(lp.CourierUnavailableError):
        hasty.hold()
    assert len(runs) == 4


def test_the_time_without_a_server_counts_anew_once_it_was_found(runtime, proxied, monkeypatch):
    server, proxy, _ = proxied
    begun, release, times = threading.Event(), threading.Event(), [1000.0]
    clock = types.SimpleNamespace(
        monotonic=lambda: times.append(times[-1]) or times[-1], sleep=time.sleep
    )
    monkeypatch.setattr(rpc_client, "time", clock)
    server.bind("block", lambda: begun.set() or release.wait(60))
    client = lp.CourierClient(proxy.address, retry_secs=60.0)
    client.count(0)
    before = set(threading.enumerate())
    answer = client.futures.block()

    def searches():
        return any(each.name == "courier-resend" for each in {*threading.enumerate()} - before)

    try:
        assert begun.wait(60)
        for _ in range(2):
            proxy.has_server.clear()
            proxy.cut()
            wait_until(searches)
            for passed in (45.0, 0.0):  # It looks for the server, also after that time.
                looked = len(times)
                wait_until(lambda looked=looked: answer.done() or len(times) > looked + 4)
                times.append(times[-1] + passed)
            proxy.has_server.set()
            wait_until(lambda: not searches())
    finally:
        release.set()
    assert answer.result(60) is True


def test_compression_works_in_both_directions(runtime, proxied):
    """Previously, it worked only in requests."""
    server, proxy, _ = proxied
    server.bind("large", lambda: np.zeros(50_000))
    for compress in (True, False):
        client = lp.CourierClient(proxy.address, compress=compress)
        again = pickle.loads(pickle.dumps(client))
        before = proxy.num_bytes
        assert not client.large().any() and not client.futures.large().result(60).any()
        assert not again.same(np.zeros(50_000)).any()
        assert (proxy.num_bytes - before < 50_000) == compress


def test_a_client_of_the_launching_process_belongs_to_each_launch_of_its_program():
    other, _ = programs.recorder_program()
    running = lp.launch(other, "test_mt")  # It has nothing to do with the client.
    program = lp.Program("test")
    node = lp.CourierNode(programs.Producer, 2, courier_client_kwargs={"retry_secs": 0})
    handle = program.add_node(node, label="producer")
    clients = [handle.dereference()]
    with pytest.raises(RuntimeError, match="before its program is launched"):
        clients[0].produce(1)
    for _ in range(2):
        manager = lp.launch(program, "test_mt")
        try:
            assert [each.produce(2) for each in clients] == [4] * len(clients)
            assert [each.futures.produce(2).result(60) for each in clients] == [4] * len(clients)
        finally:
            manager.stop_and_wait()
        clients.append(handle.dereference())
        for client in clients:
            with pytest.raises(lp.CourierUnavailableError):
                client.produce(1)
    running.stop_and_wait()


class _Hub:
    def __init__(self, client):
        self._client = client

    def client(self):
        return self._client

    def call_in_a_thread(self, client):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(client.produce, 1).result(60)


def test_a_client_in_a_call_belongs_to_the_program_of_its_server():
    """Previously, it looked for its server in the program that was launched last."""
    programs_, hubs = [lp.Program("one"), lp.Program("two")], []
    for program in programs_:
        kwargs = {"call_timeout": 30}
        node = lp.CourierNode(programs.Producer, 2, courier_client_kwargs=kwargs)
        producer = program.add_node(node, label="producer")
        hubs.append(program.add_node(lp.CourierNode(_Hub, producer), label="hub"))
    managers = [lp.launch(program, "test_mt") for program in programs_]
    try:
        for manager, hub in zip(managers, hubs, strict=True):
            client = manager.resolve(hub).client()
            assert client.produce(1) == 2
            assert manager.resolve(hub).call_in_a_thread(client) == 2
    finally:
        for manager in managers:
            manager.stop_and_wait()


def test_a_silent_host_is_noticed(runtime, proxied):
    """Its connections stay open, but no data arrives."""
    _, proxy, _ = proxied
    client = lp.CourierClient(proxy.address, retry_secs=0)
    assert client.count(0) == 1
    proxy.is_silent = True
    started = time.monotonic()
    with pytest.raises(lp.CourierUnavailableError):
        client.count(0)
    assert time.monotonic() - started < 60  # Keepalive: 4 s, and 6 s for the answer.


def test_calls_end_in_time_although_the_address_is_not_known(runtime):
    def check(error, **kwargs):
        client = lp.CourierClient(lp.Address("late"), **kwargs)
        for call in (client.same, lambda value: client.futures.same(value).result(50)):
            with pytest.raises(error) as caught:
                call(1)
        return caught.value

    assert "not reached in 0.5 s" in str(check(lp.CourierDeadlineError, call_timeout=0.5))
    check(lp.CourierUnavailableError, wait_for_ready=False)
    runtime.stop_event.set()
    error = check(lp.CourierUnavailableError)
    assert "the program is stopping" in str(error)
    assert isinstance(error.__cause__, lp.ProgramStoppedError)


def test_futures_need_no_threads(runtime, serve):
    release = threading.Event()
    runs = []
    server = serve(thread_pool_size=2)

    def block(number):
        runs.append(number)
        # One that runs although it was cancelled gives the server time to hear of that.
        release.wait() if number < 2 else time.sleep(2.0)
        return number

    server.bind("block", block)
    client = lp.CourierClient(server.address)
    try:
        client.same(0)
        before = threading.active_count()
        waiting = [client.futures.block(number) for number in range(300)]
        assert threading.active_count() <= before + 2 + 4  # The pool, and a few of gRPC's.
        wait_until(lambda: len(runs) == 2)
        time.sleep(0.2)
        assert len(runs) == 2  # As many as the server's pool has threads.
        assert all(each.cancel() for each in waiting[2:])
        release.set()
        assert [each.result(60) for each in waiting[:2]] == [0, 1]
        assert client.same(1) == 1
        assert len(runs) < 10  # Cancelled calls do not run.
    finally:
        release.set()


def test_a_call_for_which_no_thread_can_be_started_fails(runtime):
    """As under a limit on memory or threads. Later ones are tried again."""
    client = lp.CourierClient(lp.Address("late"), wait_for_ready=False)
    threading.stack_size(1 << 47)  # More than there are addresses.
    try:
        for call in (client.same, lambda value: client.futures.same(value).result(10)):
            with pytest.raises(errors.CourierError, match=r"start new thread; .* \(ulimit -v\)"):
                call(1)
    finally:
        threading.stack_size(0)
    with pytest.raises(lp.CourierUnavailableError):
        client.futures.same(2).result(60)


def test_a_server_that_can_start_no_thread_answers_with_those_it_has(runtime, serve, caplog):
    server = serve()
    release = threading.Event()
    server.bind("block", lambda: release.wait(60))
    client = lp.CourierClient(server.address)
    assert client.same(0) == 0
    try:
        blocked = client.futures.block()
        threading.stack_size(1 << 47)  # More than there are addresses.
        waiting = [client.futures.same(number) for number in range(4)]
        wait_until(lambda: "start new thread; calls handled at a time: 1" in caplog.text)
        release.set()
        assert blocked.result(60)
        assert [each.result(60) for each in waiting] == [0, 1, 2, 3]
    finally:
        threading.stack_size(0)
        release.set()
    server.bind("meet", threading.Barrier(3).wait)  # The shortage has passed.
    meeting = [client.futures.meet(60) for _ in range(3)]
    assert sorted(each.result(60) for each in meeting) == [0, 1, 2]
    assert caplog.text.count("start new thread") == 1


def test_a_taken_port_is_replaced_by_a_free_one(runtime):
    """Unless the user has chosen the port, because others look for the node there."""
    address = lp.Address()
    runtime.info = dataclasses.replace(runtime.info, host="127.0.0.2")  # As on another machine.
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        runtime.publish(address.key, f"127.0.0.2:{port}")
        server = courier_node.make_server(runtime, address, {})
        assert server.port not in (0, port)
        server.stop()
        with pytest.raises(OSError, match=rf"port {port} of 127\.0\.0\.2 is taken; choose another"):
            courier_node.make_server(runtime, address, {"port": port})
    server = courier_node.make_server(runtime, address, {})
    assert server.port == port
    server.stop()


def test_a_call_waits_for_a_server_that_comes_back_elsewhere(runtime, serve):
    address = lp.Address()
    client = lp.CourierClient(address)
    hasty = lp.CourierClient(address, retry_secs=0)
    first = serve(identity=address.key)
    runtime.publish(address.key, first.address)
    assert client.same(1) == 1 and hasty.same(1) == 1
    brief = lp.CourierClient(first.address, retry_secs=1.0)
    assert brief.futures.same(1).result(60) == 1
    first.stop()
    for call in (hasty.same, lambda value: brief.futures.same(value).result(60)):
        with pytest.raises(lp.CourierUnavailableError):
            call(2)

    def come_back() -> None:
        runtime.publish(address.key, serve(identity=address.key).address)

    threading.Timer(0.5, come_back).start()
    early = client.futures.same(4)
    assert client.same(3) == 3
    assert early.result(timeout=60) == 4


def test_waiting_says_what_it_waits_for(monkeypatch, caplog, runtime):
    monkeypatch.setattr(lp_runtime, "WAIT_MESSAGE_SECS", 0.2)

    def wait_for(text):
        wait_until(lambda: text in caplog.text)

    late = lp.Address("late")
    call = lp.CourierClient(late, call_timeout=600).futures.same(1)
    wait_for("node/0: waiting for the server of late")
    assert call.cancel()
    with pytest.raises(TimeoutError, match=r"no address in 0\.1 s"):
        late.resolve(timeout=0.1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(runtime.resolve, late.key, 60)
        wait_for("waiting for the address")
        runtime.publish(late.key, "host:1")
        assert found.result(60) == "host:1"
