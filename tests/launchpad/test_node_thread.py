"""How threads that run nodes are interrupted."""

import contextlib
import functools
import importlib
import logging
import os
import queue
import signal
import sys
import threading
import time
import types
from concurrent import futures

import grpc
import pytest

import launchpad as lp
from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.engines import child as lp_child
from launchpad.nodes import node_thread
from launchpad.nodes.node_thread import NodeThread
from tests.waiting import wait_until

_wait_until = functools.partial(wait_until, pause=0.001)


class SlowEvent(threading.Event):
    """A replacement for a thread's `_started` whose `wait` returns late."""

    def __init__(self):
        super().__init__()
        self.is_waited_for, self.may_return = threading.Event(), threading.Event()

    def wait(self, timeout=None):
        self.is_waited_for.set()
        return self.may_return.wait(60)


def test_an_interrupt_waits_until_a_thread_that_the_node_starts_runs():
    """Otherwise it might end that thread instead of the node, which would wait for it forever."""
    started, errors = SlowEvent(), []

    def execute():
        thread = threading.Thread(target=lambda: None)
        thread._started = started
        thread.start()
        while True:
            time.sleep(0.001)

    node = NodeThread("node", types.SimpleNamespace(execute=execute), None, errors.append)
    node.start()
    assert started.is_waited_for.wait(60)
    interrupt = threading.Thread(target=node.interrupt)
    interrupt.start()
    interrupt.join(0.2)
    assert interrupt.is_alive() and node.is_alive()
    started.may_return.set()
    interrupt.join(60)
    node.join(60)
    assert not node.is_alive()
    assert isinstance(errors[0], SystemExit)


def test_an_interrupt_that_is_late_is_given_up():
    """Meanwhile, the node has returned from `run()` by itself, and others still call it."""
    started, is_serving, may_end, ended = SlowEvent(), threading.Event(), threading.Event(), []

    def execute():
        thread = threading.Thread(target=lambda: None)
        thread._started = started
        thread.start()
        is_serving.set()
        while not may_end.is_set():
            time.sleep(0.001)

    node = NodeThread("node", types.SimpleNamespace(execute=execute), None, ended.append)
    node.start()
    assert started.is_waited_for.wait(60)
    interrupt = threading.Thread(target=node.interrupt, args=(lambda: not is_serving.is_set(),))
    interrupt.start()
    time.sleep(0.1)
    is_serving.set()
    started.may_return.set()
    interrupt.join(60)
    may_end.set()
    node.join(60)
    assert ended == [None]


class _Waiting:
    def __init__(self, may_return):
        self.run = may_return.wait


@pytest.mark.parametrize("is_colocated", [False, True])
def test_a_node_is_interrupted_while_it_has_something_to_do_of_its_own(monkeypatch, is_colocated):
    asked, may_return = queue.SimpleQueue(), threading.Event()

    def ask(thread, is_wanted):
        if thread.name.startswith("waiting/0"):  # Not a blocked node that another test left behind.
            asked.put(is_wanted)

    monkeypatch.setattr(NodeThread, "interrupt", ask)
    node = lp.CourierNode(_Waiting, may_return)
    node.create_handle()
    program = lp.Program("test")
    program.add_node(lp.MultiThreadingColocation([node]) if is_colocated else node, label="waiting")
    manager = lp.launch(program, "test_mt", termination_notice_secs=60)
    assert manager.wait_until_ready(60)
    manager.stop()
    is_wanted = asked.get(timeout=60)
    assert is_wanted()
    may_return.set()
    assert manager.wait(60) and not is_wanted()


def test_an_interrupt_after_run_does_not_end_a_server(monkeypatch):
    """It is set while `run()` returns, and raised in whatever the node does next."""
    set_state, interrupts = lp_runtime.NodeRuntime.set_state, []

    def interrupted(self, state):
        if state == lp_runtime.SERVING and not interrupts:
            interrupts.append(state)
            raise SystemExit
        set_state(self, state)

    monkeypatch.setattr(lp_runtime.NodeRuntime, "set_state", interrupted)
    program = lp.Program("test")
    handle = program.add_node(lp.CourierNode(list), label="server")
    manager = lp.launch(program, "test_mt")
    assert manager.wait_until_ready(60) and interrupts
    assert manager.resolve(handle).copy() == []
    manager.stop()
    assert manager.wait(60)


def test_a_late_signal_does_not_end_a_process_that_serves():
    runtime = types.SimpleNamespace(was_interrupted=True, stop_event=threading.Event())
    runtime.stop_event.set()
    node = types.SimpleNamespace(runtime=runtime, _stands_still=False)
    runtime.is_active = False
    lp_child.Child._on_sigterm(node, signal.SIGTERM, None)
    runtime.is_active = True
    with pytest.raises(SystemExit):
        lp_child.Child._on_sigterm(node, signal.SIGTERM, None)


def test_a_signal_within_the_lock_of_a_condition_comes_again(monkeypatch):
    """Otherwise, an exit handler that uses the condition would wait forever."""
    runtime = types.SimpleNamespace(
        was_interrupted=True, is_active=True, stop_event=threading.Event()
    )
    runtime.stop_event.set()
    node = types.SimpleNamespace(runtime=runtime, _is_put_off=False, _stands_still=False)
    condition, may_leave, is_inside = threading.Condition(), threading.Event(), threading.Event()

    def run():
        with condition:
            is_inside.set()
            may_leave.wait(60)

    thread = threading.Thread(target=run, daemon=True)
    frames, places = [], []
    with condition:
        thread.start()
        _wait_until(lambda: _frame_of(thread).f_code is threading.Condition.__enter__.__code__)
        frames.append(_frame_of(thread))

        def send(pid, number):
            assert (pid, number) == (os.getpid(), signal.SIGTERM)
            frame = frames.pop() if frames else None
            places.append(frame)
            lp_child.Child._on_sigterm(node, number, frame)

        monkeypatch.setattr(lp_child, "os", types.SimpleNamespace(kill=send, getpid=os.getpid))
        with pytest.raises(SystemExit):
            lp_child.Child._interrupt(node)
        assert len(places) == 2 and places[1] is None
    assert is_inside.wait(60)
    may_leave.set()
    thread.join(60)


def _leave_by_finally(wait):
    try:
        raise SystemExit
    finally:
        wait()


def _leave_by_a_context(wait):
    with contextlib.ExitStack() as stack:
        stack.callback(wait)
        raise SystemExit


def _leave_within_another_exception(wait):
    try:
        raise SystemExit
    except SystemExit:
        with contextlib.suppress(OSError):
            try:
                raise OSError("the save has to be repeated")
            except OSError:
                wait()


def _go_on(wait):
    with contextlib.suppress(SystemExit):
        raise SystemExit
    try:
        raise ValueError("another one")
    except ValueError:
        wait()


@pytest.mark.parametrize(
    ("function", "is_leaving"),
    [
        (_leave_by_finally, True),
        (_leave_by_a_context, True),
        (_leave_within_another_exception, True),
        (_go_on, False),
        (lambda wait: wait(), False),
    ],
)
def test_a_node_leaves_while_it_handles_the_interrupt(function, is_leaving):
    is_there, may_end = threading.Event(), threading.Event()

    def wait():
        is_there.set()
        may_end.wait(60)

    thread = threading.Thread(target=function, args=(wait,), daemon=True)
    thread.start()
    assert is_there.wait(60)
    assert node_thread.is_leaving(thread.ident) == is_leaving
    may_end.set()
    thread.join(60)
    assert not node_thread.is_leaving(thread.ident)  # It has ended.


def test_a_node_that_has_ended_is_not_interrupted():
    errors = []
    node = NodeThread("node", types.SimpleNamespace(execute=lambda: None), None, errors.append)
    node.start()
    node.join(60)
    node.interrupt()
    assert errors == [None]


def _enter(condition, has_begun):
    while True:
        try:
            has_begun.set()
            with condition:
                return
        except SystemExit:  # It had not reached the lock yet.
            continue


def test_a_node_that_waits_for_the_lock_of_a_condition_does_not_hold_up_the_end(caplog):
    """The interrupt waits until the node has the lock; the end of the program does not."""
    condition, has_begun = threading.Condition(), threading.Event()
    program = lp.Program("test")
    program.add_node(lp.PyNode(_enter, condition, has_begun), label="node")
    with condition:
        manager = lp.launch(program, "test_mt", termination_notice_secs=0.5)
        assert has_begun.wait(60)
        manager.stop()
        assert manager.wait(timeout=60)
    assert "still running after 0.5 s (threads cannot be killed): node/0" in caplog.text
    assert "killed after" not in caplog.text and "left behind" not in caplog.text


def test_an_interrupted_node_gives_back_the_lock_of_a_condition():
    """Previously, half of the interrupts struck between the acquisition and the entry of `with`."""
    for _ in range(15):
        condition = threading.Condition()

        def execute(condition=condition):
            while True:
                with condition:
                    pass

        node = NodeThread("node", types.SimpleNamespace(execute=execute), None, lambda error: None)
        node.start()
        time.sleep(0.001)
        for _ in range(10):  # Python discards an exception in a callback or a finalizer.
            node.interrupt()
            node.join(3)
            if not node.is_alive():
                break
        assert not node.is_alive()
        assert condition.acquire(timeout=60), "an interrupted node has kept the lock"


def _frame_of(thread):
    return sys._current_frames()[thread.ident]


class _Handler(logging.Handler):
    def emit(self, record):
        del record


def test_an_interrupted_node_gives_back_the_lock_of_logging():
    """It waits for the lock when it is interrupted, and would end as soon as it acquires it."""
    handler, record = _Handler(), logging.makeLogRecord({"msg": "step"})

    def execute():
        while True:
            handler.handle(record)

    node = NodeThread("node", types.SimpleNamespace(execute=execute), None, lambda error: None)
    interrupt = threading.Thread(target=node.interrupt)
    with handler.lock:
        node.start()
        _wait_until(lambda: _frame_of(node).f_code is logging.Handler.acquire.__code__)
        interrupt.start()
        interrupt.join(0.2)
        assert interrupt.is_alive() and node.is_alive()
    interrupt.join(60)
    for _ in range(10):  # Python discards an exception in a callback or a finalizer.
        node.join(3)
        if not node.is_alive():
            break
        node.interrupt()
    assert not node.is_alive()
    assert handler.lock.acquire(timeout=60), "an interrupted node has kept the lock"


def test_an_interrupt_waits_until_a_node_that_waits_for_an_import_has_its_lock(
    tmp_path, monkeypatch
):
    """Otherwise, others that wait for the import would still wait after the node's end."""
    begun, may_end = tmp_path / "begun", tmp_path / "may_end"
    (tmp_path / "slow_to_import.py").write_text(
        f"import pathlib, time\n"
        f"pathlib.Path({str(begun)!r}).touch()\n"
        f"while not pathlib.Path({str(may_end)!r}).exists():\n"
        f"    time.sleep(0.01)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def execute():
        importlib.import_module("slow_to_import")

    first = threading.Thread(target=execute)
    node = NodeThread("node", types.SimpleNamespace(execute=execute), None, lambda error: None)
    interrupt = threading.Thread(target=node.interrupt)
    try:
        first.start()
        _wait_until(begun.exists)
        node.start()
        _wait_until(lambda: _frame_of(node).f_code.co_name == "acquire")
        interrupt.start()
        interrupt.join(0.2)
        assert interrupt.is_alive() and node.is_alive()
    finally:
        may_end.touch()
        for thread in (first, interrupt, node):
            thread.join(60)
        sys.modules.pop("slow_to_import", None)
    assert not (first.is_alive() or interrupt.is_alive() or node.is_alive())


@pytest.mark.parametrize(
    ("error", "is_failure"),
    [
        (OSError("no space for the last save"), True),
        (errors.CourierUnavailableError("the peer is gone"), False),
        (SystemExit(1), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_only_what_follows_from_a_stop_is_the_normal_end_of_an_interrupted_node(error, is_failure):
    stop = threading.Event()
    stop.set()
    runtime = types.SimpleNamespace(name="node/0", was_interrupted=True, stop_event=stop)
    assert (node_thread.failure_of(error, runtime) is not None) == is_failure


class Echo(grpc.GenericRpcHandler):
    """Answers every call with its request."""

    def service(self, handler_call_details):
        del handler_call_details
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


def test_a_thread_that_has_gone_on_since_the_look_is_not_struck():
    go_on, has_gone_on, ended = threading.Event(), threading.Event(), threading.Event()

    def run():
        try:
            go_on.wait(60)
            has_gone_on.set()
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    waiting = sys._current_frames()[thread.ident]
    at = waiting.f_lasti
    assert not node_thread._strike(thread.ident, waiting, at - 2)
    go_on.set()
    assert has_gone_on.wait(60)
    assert not node_thread._strike(thread.ident, waiting, waiting.f_lasti)
    assert not ended.wait(0.05)
    deadline = time.monotonic() + 60
    is_struck = False
    while not is_struck:
        assert time.monotonic() < deadline
        outer = sys._current_frames()[thread.ident]  # It may reach this frame late.
        is_struck = node_thread._strike(thread.ident, outer, outer.f_lasti)
    assert ended.wait(60)


def test_an_interrupted_node_gives_back_the_locks_of_grpc():
    """Previously, a sixth of the interrupts left a channel's lock acquired, and `close` hung."""
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Echo()])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    for _ in range(40):
        channel = grpc.insecure_channel(address)
        call = channel.unary_unary("/service/method")
        assert call(b"", timeout=60, wait_for_ready=True) == b""

        def execute(call=call):
            while True:
                call.future(b"", timeout=60).result()

        node = NodeThread("node", types.SimpleNamespace(execute=execute), None, lambda error: None)
        node.start()
        time.sleep(0.005)
        deadline = time.monotonic() + 60
        while node.is_alive() and time.monotonic() < deadline:
            node.interrupt()
            node.join(0.1)
        assert not node.is_alive()
        closing = threading.Thread(target=channel.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive(), "an interrupted node has kept the lock of the channel"
    server.stop(0)
