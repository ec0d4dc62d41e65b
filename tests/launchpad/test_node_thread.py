"""How threads that run nodes are interrupted."""

import os
import subprocess
import threading
import time
import types

import pytest

import launchpad as lp
from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.nodes import node_thread
from launchpad.nodes.node_thread import NodeThread
from tests.launchpad import programs
from tests.suite import forked
from tests.waiting import wait_until


def _node(execute, on_end):
    node = types.SimpleNamespace(execute=execute, addresses=[])
    return NodeThread("node", node, programs.node_runtime(), on_end)


def test_a_node_is_interrupted_and_leaves_its_contexts():
    condition, is_there, ended = threading.Condition(), threading.Event(), []

    def execute():
        with condition:
            is_there.set()
            while True:
                condition.wait(0.01)

    node = _node(execute, ended.append)
    node.start()
    assert is_there.wait(60)
    node.interrupt()
    node.join(60)
    assert ended == [None], "that is no failure"
    assert condition.acquire(timeout=60), "an interrupted node has kept the lock"


def test_a_node_that_starts_threads_is_interrupted_and_they_are_not():
    """Until a new thread runs, CPython 3.11 gives it the identity of the thread that starts it."""
    for _ in range(20):
        ended, is_there = [], threading.Event()

        def execute(is_there=is_there):
            while True:
                thread = threading.Thread(target=is_there.set)
                thread.start()
                thread.join()
                time.sleep(0.001)  # Here it can be interrupted.

        node = _node(execute, ended.append)
        node.start()
        assert is_there.wait(60)
        node.interrupt()
        node.join(20)
        assert ended, "a node waits forever for a thread that got its interrupt"


def test_a_node_that_has_ended_is_not_interrupted():
    ended = []
    node = _node(lambda: None, ended.append)
    node.start()
    node.join(60)
    node.interrupt()
    assert ended == [None]


_WATCHED = """
import threading
import launchpad as lp
threading.{}(lambda *_: None)
lp.launch(lp.make_program(lp.PyNode(int), lp.PyNode(int)), "local_mt").wait()
"""


@pytest.mark.processes
@pytest.mark.parametrize("watch", ["settrace", "setprofile"])
def test_nodes_end_under_a_debugger_or_a_profiler(watch):
    script = [*forked.python(), "-c", _WATCHED.format(watch)]
    subprocess.run(script, env={**os.environ, "PYTHONPATH": os.getcwd()}, timeout=100, check=True)


@pytest.mark.parametrize("is_colocated", [False, True])
def test_a_node_that_only_serves_is_not_interrupted(is_colocated):
    node = lp.CourierNode(list)
    handle = node.create_handle()
    has_begun, may_stop = threading.Event(), threading.Event()
    program = lp.Program("test")
    program.add_node(lp.MultiThreadingColocation([node]) if is_colocated else node, label="server")
    program.add_node(lp.PyNode(_wait_on, has_begun, may_stop), label="working")
    manager = lp.launch(program, "test_mt", termination_notice_secs=60)
    client = manager.resolve(handle)
    assert client.copy() == []
    assert has_begun.wait(60)
    manager.stop()
    assert not manager.wait(0.3)
    assert client.copy() == [], "it serves while another node leaves its run()"
    may_stop.set()
    assert manager.wait(60)


def _wait_on(has_begun, may_stop):
    lp.stop_event()  # From here on, it is not interrupted.
    has_begun.set()
    lp.wait_for_stop()
    may_stop.wait(60)


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
    wait_until(lambda: interrupts)
    assert manager.resolve(handle).copy() == []
    manager.stop()
    assert manager.wait(60)


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
    assert node_thread.is_failure(error, runtime) == is_failure
