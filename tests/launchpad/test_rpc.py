"""Remote calls: values, errors, deadlines, secrets."""

from __future__ import annotations

import concurrent.futures
import pickle
import socket
import threading
import time

import numpy as np
import pytest

import launchpad as lp
from launchpad import address_book as lp_address_book
from launchpad import runtime as lp_runtime
from launchpad.rpc import client as rpc_client
from launchpad.rpc import server as rpc_server
from launchpad.rpc import wire
from tests.launchpad import programs


@pytest.fixture(params=["in_process", "grpc"])
def service(request, monkeypatch):
    """A client of programs.Service, by both ways that a call can take."""
    if request.param == "grpc":
        monkeypatch.setattr(rpc_server, "local_server", lambda address: None)
    program = lp.Program("test")
    handle = program.add_node(
        lp.CourierNode(programs.Service, courier_kwargs={"thread_pool_size": 8}), label="service"
    )
    manager = lp.launch(program, "test_mt")
    yield manager.resolve(handle)
    manager.stop_and_wait()


class _Exploding:
    """Leaves a mark when it is unpickled."""

    unpickled = False

    def __reduce__(self):
        return _explode, ()


def _explode() -> None:
    _Exploding.unpickled = True


def test_arguments_and_results(service):
    assert service.echo(1, "two", key=None) == ((1, "two"), {"key": None})
    assert service.same(lambda x: x + 1)(1) == 2  # Functions travel by value.
    assert service.futures.same([3]).result(timeout=10) == [3]
    methods = rpc_client.list_methods(service)
    assert "echo" in methods and "value" not in methods and "costly" not in methods


@pytest.mark.parametrize("shape", [(0,), (3,), (500, 700), (1 << 21,)])
def test_arrays_arrive_equal_writable_and_unshared(service, shape):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    sent = {"a": array, "fortran": np.asfortranarray(array), "strided": array[::2]}
    received = service.same(sent)
    for name, value in sent.items():
        np.testing.assert_array_equal(received[name], value)
        assert received[name].flags.writeable
        assert not np.shares_memory(received[name], value)


def test_an_exception_of_the_server_is_raised_with_its_traceback(service):
    with pytest.raises(KeyError, match="some text") as caught:
        service.fail("some text")
    assert "raise KeyError(text)" in str(caught.value.__cause__)
    with pytest.raises(lp.RemoteError, match="1 and 2"):
        service.fail_unpicklable()
    with pytest.raises(AttributeError, match=r"no method 'missing'.*echo"):
        service.missing()
    with pytest.raises(KeyError, match="later"):
        service.futures.fail("later").result(timeout=10)
    assert service.same(1) == 1


def test_private_names_are_not_calls(service):
    with pytest.raises(AttributeError):
        service._private  # noqa: B018
    assert not hasattr(service, "__array__")


def test_a_deadline_ends_a_call(service):
    hasty = lp.CourierClient(service._target, call_timeout=0.3)
    started = time.monotonic()
    with pytest.raises(lp.CourierDeadlineError, match=r"block\(\) on service/0"):
        hasty.block(20)
    assert time.monotonic() - started < 2
    assert isinstance(lp.CourierDeadlineError(""), TimeoutError)
    service.release()


def test_calls_run_at_the_same_time_and_can_be_cancelled(service):
    waiting = [service.futures.block(20) for _ in range(3)]
    extra = service.futures.block(20)
    assert extra.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        extra.result(timeout=5)
    service.release()
    assert [w.result(timeout=10) for w in waiting] == [True, True, True]


def test_a_client_pickles(service):
    again = pickle.loads(pickle.dumps(service))
    assert again.same("x") == "x"
    assert again.address == service.address


def test_many_threads_share_a_client(service):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(service.same, range(200))) == list(range(200))


def _serve(token: bytes) -> rpc_server.Server:
    server = rpc_server.Server(token)
    server.bind("same", lambda value: value)
    server.start()
    return server


def _runtime(token: bytes) -> lp_runtime.NodeRuntime:
    info = lp_runtime.ProgramInfo("id", token, lp.LaunchType.TEST_MULTI_THREADING, "127.0.0.1", {})
    ignore = lp_runtime.Callbacks(*[lambda *args: None] * 4)
    return lp_runtime.NodeRuntime("stranger", 0, info, lp_address_book.AddressBook(), ignore)


@pytest.mark.parametrize("token", [b"w" * 32, b"", b"r" * 31])
def test_nothing_is_unpickled_without_the_right_token(token):
    import grpc

    server = _serve(b"r" * 32)
    try:
        message = wire.encode(token, b"same", ((_Exploding(),), {}))
        with grpc.insecure_channel(server.address) as channel:
            call = channel.unary_unary(rpc_server.CALL_PATH)
            with pytest.raises(grpc.RpcError) as caught:
                call(message, timeout=5)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert not _Exploding.unpickled
            # With the right one it would have been.
            call(wire.encode(b"r" * 32, b"same", ((_Exploding(),), {})), timeout=5)
            assert _Exploding.unpickled
    finally:
        _Exploding.unpickled = False
        server.stop()


@pytest.mark.parametrize("is_local", [True, False])
def test_a_client_of_another_program_is_refused(monkeypatch, is_local):
    if not is_local:
        monkeypatch.setattr(rpc_server, "local_server", lambda address: None)
    server = _serve(b"r" * 32)
    lp_runtime.set_thread_runtime(_runtime(b"w" * 32))
    try:
        with pytest.raises(lp.CourierAuthenticationError, match="token"):
            lp.CourierClient(server.address).same(1)
    finally:
        lp_runtime.set_thread_runtime(None)
        server.stop()


def test_a_taken_port_is_replaced_by_a_free_one():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = rpc_server.Server(b"r" * 32, port=port)
        assert server.port not in (0, port)
        server.stop()


def test_a_call_waits_for_a_server_that_comes_back_elsewhere(monkeypatch):
    monkeypatch.setattr(rpc_server, "local_server", lambda address: None)
    runtime = _runtime(b"r" * 32)
    address = lp.Address()
    lp_runtime.set_thread_runtime(runtime)
    try:
        client = lp.CourierClient(address)
        hasty = lp.CourierClient(address, retry_secs=0)
        first = _serve(b"r" * 32)
        runtime.publish(address.key, first.address)
        assert client.same(1) == 1 and hasty.same(1) == 1
        first.stop()
        with pytest.raises(lp.CourierUnavailableError):
            hasty.same(2)
        servers = []

        def come_back() -> None:
            servers.append(_serve(b"r" * 32))
            runtime.publish(address.key, servers[0].address)

        threading.Timer(0.5, come_back).start()
        assert client.same(3) == 3
        assert client.futures.same(4).result(timeout=10) == 4
        servers[0].stop()
    finally:
        lp_runtime.set_thread_runtime(None)


def test_waiting_says_what_it_waits_for(monkeypatch, caplog):
    monkeypatch.setattr(lp_runtime, "WAIT_MESSAGE_SECS", 0.2)
    runtime = _runtime(b"r" * 32)
    lp_runtime.set_thread_runtime(runtime)
    try:
        client = lp.CourierClient("127.0.0.1:9", call_timeout=1)
        with pytest.raises(lp.CourierDeadlineError, match="not reached"):
            client.same(1)
        assert "stranger/0: waiting for the server of 127.0.0.1:9" in caplog.text
        with pytest.raises(TimeoutError, match="no address"):
            lp.Address("late").resolve(timeout=0.5)
        assert "waiting for the address" in caplog.text
    finally:
        lp_runtime.set_thread_runtime(None)


def test_a_finished_handler_pool_leaves_no_threads():
    before = threading.active_count()
    server = _serve(b"r" * 32)
    server.stop()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= before
