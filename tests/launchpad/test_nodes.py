"""Nodes and programs beyond the basic ones."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
import pickle
import queue
import socket
import subprocess
import threading
import time
import types
from concurrent import futures

import attrs
import numpy as np
import pytest

import launchpad as lp
from launchpad.engines import member
from launchpad.nodes import base, colocation, dereference
from launchpad.nodes import batching as courier_utils
from launchpad.nodes import cacher as cacher_node
from launchpad.rpc import client as rpc_client
from tests.launchpad import programs
from tests.suite import forked
from tests.waiting import wait_until

# -- programs ----------------------------------------------------------------------------


def test_groups_and_labels():
    program = lp.Program("demo")
    node = lp.PyNode(print)
    with program.group("one"):
        program.add_node(node)
        program.add_node(lp.PyNode(print), label="one")
        nested = program.group("two")
        with pytest.raises(ValueError, match=r"^group\(\) cannot be nested\.$"):
            nested.__enter__()
        with pytest.raises(ValueError, match=r"does not match the current group: two vs one\.$"):
            program.add_node(lp.PyNode(print), label="two")
    with pytest.raises(ValueError, match=r"^Label should not be empty\.$"):
        program.add_node(lp.PyNode(print))
    assert {label: len(nodes) for label, nodes in program.groups.items()} == {"one": 2}
    server = lp.CourierNode(dict)
    program.add_node(server, label="server")
    with pytest.raises(ValueError, match="can have one server only; make another node"):
        program.add_node(server, label="server")
    program.groups.pop("server")
    assert program.name == "demo" and program.get_all_nodes()[0] is node
    assert len(lp.make_program(lp.PyNode(print), lp.PyNode(print)).get_all_nodes()) == 2


def test_addresses(monkeypatch):
    address = lp.Address("demo")
    with pytest.raises(ValueError, match="'Demo'"):
        lp.Address("Demo")
    with pytest.raises(RuntimeError, match="before its program is launched"):
        address.resolve()
    node = lp.PyNode(print)
    address.assign(node)
    assert node.addresses == [address]
    with pytest.raises(ValueError, match="belongs to"):
        address.assign(lp.PyNode(print))
    assert pickle.loads(pickle.dumps(lp.Address("x"))).name == "x"
    manager = lp.launch(lp.make_program(lp.PyNode(lp.wait_for_stop)), "test_mt")
    with pytest.raises(RuntimeError, match=r"orphan belongs to no node .*node\.allocate_address"):
        lp.Address("orphan").resolve()  # It used to wait for ever.
    manager.stop_and_wait()
    address.bind(lp.SimpleLocalAddressBuilder())
    assert lp.get_port_from_address(address.resolve()) > 0
    monkeypatch.setenv("LP_PORT_demo", "81")
    assert lp.get_port_from_address("somewhere:demo") == 81


def test_a_node_that_was_started_again_takes_its_old_address_only_if_it_can():
    book: dict[str, str] = {}

    def resolve(host="127.0.0.1"):
        """Resolves the address in a new incarnation of the node, which then ends."""
        runtime = programs.node_runtime(host, book)
        runtime.owned_keys = frozenset(["key"])
        address = runtime.resolve("key", None)
        assert address == runtime.resolve("key", None) == book.get("key")
        return address

    first = resolve()
    assert resolve() == first
    with socket.create_server(("127.0.0.1", int(first.rpartition(":")[2]))):
        assert resolve() != first
    book["key"] = "10.1.2.3:99"  # On a machine that was lost.
    assert resolve().startswith("127.0.0.1:")
    book["key"] = first
    assert resolve("127.0.0.2").startswith("127.0.0.2:")


@dataclasses.dataclass(frozen=True)
class _Frozen:
    handle: object
    derived: int = dataclasses.field(init=False, default=3)


@attrs.frozen
class _Attributes:
    inner: object


class _Handle(base.Handle):
    def dereference(self):
        return "client"


@dataclasses.dataclass(frozen=True)
class _HandleWithFields(_Handle):
    label: str


def test_handles_are_found_in_any_tree():
    handle = _Handle()
    untouched = [1, {"a": (2,)}]
    tree = {
        "attrs": _Attributes((handle,)),
        "proxy": types.MappingProxyType({"b": handle}),
        "frozen": _Frozen(handle),
        "partial": functools.partial(max, handle, key=handle),
        "deferred": lp.Deferred(dict, a=[handle]),
        "untouched": untouched,
    }
    tree["self"] = [tree]
    found = dereference.dereference_tree(tree)
    assert found["frozen"] == _Frozen("client") and found["frozen"].derived == 3
    assert found["partial"].args == ("client",) and found["partial"].keywords == {"key": "client"}
    assert found["deferred"] == {"a": ["client"]} and found["proxy"] == {"b": "client"}
    assert found["attrs"] == _Attributes(("client",))
    assert found["untouched"] is untouched
    assert tree["frozen"].handle is handle, "the arguments themselves must not change"
    fields = _HandleWithFields("a")
    assert dereference.dereference_tree([fields, _Frozen(fields)]) == ["client", _Frozen("client")]
    visited = []  # A list of two million numbers would take ten seconds.
    leaves = [1, 2.0, "text", b"bytes", None, True, handle, {"a": 1, "b": [handle]}, ()]
    assert dereference.map_tree(lambda leaf: visited.append(leaf) or leaf, leaves) is leaves
    assert visited == [handle, handle]
    assert base.extract_handles(tree) == [handle] * 6


def test_a_deferred_object_is_made_once_in_a_node():
    shared = lp.Deferred(list)
    made = []
    args = (shared, {"again": shared}, lp.Deferred(_Frozen, shared), lp.Deferred(list))
    for each in (pickle.loads(pickle.dumps(args)), args):
        lp.PyNode(lambda *found: made.append(found), *each).execute()
    for one, tree, frozen, other in made:
        assert tree["again"] is one and frozen.handle is one and other is not one
    assert made[0][0] is not made[1][0]


def test_what_is_not_allowed_is_said_in_one_line():
    part = lp.PyNode(print)
    part.restart_policy = lp.RestartPolicy()
    outer, inner = lp.MultiThreadingColocation([]), lp.MultiProcessingColocation([lp.PyNode(print)])
    inner.add_node(outer)
    for error, told, call in (
        *(
            (RuntimeError, "no Launchpad program runs here", function)
            for function in (lp.stop, lp.stop_event, lp.wait_for_stop, lp.context.get_context)
        ),
        (NotImplementedError, "vertex_ai", lambda: lp.make_program_stopper("vertex_ai")),
        (ValueError, "got a MultiProcessingColocation; put the", lambda: outer.add_node(inner)),
        (ValueError, "; set it on the colocation", lambda: lp.MultiThreadingColocation([part])),
        (ValueError, "positive", lambda: lp.CacherNode(lp.PyNode(print).create_handle(), 0, 10)),
        (ValueError, "positive", lambda: lp.batched_handler(batch_size=0)),
        (TypeError, "not bound", lambda: lp.batched_handler(2)(programs.Source.get_variables)),
        (ValueError, "negative", lambda: lp.RestartPolicy(max_restarts=-1)),
        (ValueError, "negative", lambda: lp.RestartPolicy(max_backoff_secs=float("nan"))),
        (
            ValueError,
            "^frozen_after_secs=1: expected at least 10 .*every 2 s.* or None to wait forever$",
            lambda: lp.RestartPolicy(frozen_after_secs=1),
        ),
    ):
        with pytest.raises(error, match=told):
            call()
    assert lp.is_local_launch("local_mp") and not lp.is_local_launch("test_mp")
    assert lp.is_local_launch_or_test(lp.LaunchType.TEST_MULTI_THREADING)


# -- restarts ----------------------------------------------------------------------------


def test_a_node_with_a_policy_comes_back_as_often_as_it_says(engine, caplog):
    are_threads = engine == lp.LaunchType.TEST_MULTI_THREADING
    ways = ["exception"] * 2 if are_threads else ["signal", "exception"]
    program, recorder = programs.recorder_program()
    fragile = program.add_node(lp.CourierNode(programs.Fragile, ways, recorder), label="fragile")
    mortal = lp.PyNode(programs.raise_unpicklable, recorder)
    mortal.restart_policy = lp.RestartPolicy(max_restarts=1, initial_backoff_secs=0.1)
    program.add_node(mortal, label="mortal")
    policy = lp.RestartPolicy(max_restarts=2, initial_backoff_secs=0.1)
    manager = lp.launch(program, engine, restart_policies={"fragile": policy})
    entries = manager.resolve(recorder)
    client = manager.resolve(fragile)
    wait_until(lambda: entries.entries().count("born") == 3)
    assert client.life() == 3  # The same client finds the new incarnation.
    killed, raised = [each.reason for each in manager.restarts if each.node == "fragile/0"]
    assert are_threads or killed.startswith("ProcessDied: ")
    assert raised == "OSError: death number 2"
    entries.add("fail")
    with pytest.raises(lp.NodeFailedError, match="node mortal/0 failed: .*: 1 and 2"):
        manager.wait(timeout=90)
    assert "UnpicklableError: 1 and 2; restart 1 of 1 in 0.1 s" in caplog.text
    assert "raise UnpicklableError(1, 2)" in caplog.text


def test_a_policy_limits_restarts():
    policy = lp.RestartPolicy(
        max_restarts=6, initial_backoff_secs=0.5, max_backoff_secs=3, reset_after_secs=60
    )
    restarts = member.Restarts(policy)
    assert [restarts.next_pause(3) for _ in range(4)] == [0.5, 1.0, 2.0, 3.0]
    assert [restarts.next_pause(lived) for lived in (60, 3, 3)] == [0.5, 1.0, None]
    assert restarts.next_pause(61) == 0.5
    many = member.Restarts(dataclasses.replace(policy, max_restarts=3000))
    assert [many.next_pause(0) for _ in range(3000)][-1] == 3  # It does not overflow.


# -- caches and batches ------------------------------------------------------------------


def test_a_cacher_asks_its_source_rarely():
    program = lp.Program("test")
    source = program.add_node(lp.CourierNode(programs.Source), label="source")
    cacher = program.add_node(lp.CacherNode(source, 300, 60_000), label="cacher")
    manager = lp.launch(program, "test_mt")
    client, origin = manager.resolve(cacher), manager.resolve(source)
    started = time.monotonic()
    first = client.get_variables(["a", "b"])
    assert first == {"a": 1, "b": 1}
    for _ in range(50):
        client.get_variables(["a", "b"])
    calls = origin.calls()
    assert calls <= 2 + (time.monotonic() - started) / 0.3  # A busy machine takes seconds.
    assert client.get_variables(["a"]).keys() == {"a"}  # Other arguments have another answer.
    wait_until(lambda: client.get_variables(["a", "b"])["a"] > 3)  # It is refreshed.
    assert rpc_client.list_methods(client) == rpc_client.list_methods(origin)
    with pytest.raises(KeyError, match="from the source"):
        client.fail()
    manager.stop_and_wait()


def test_a_stale_answer_is_not_given(monkeypatch):
    now = 1000.0
    clock = types.SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(cacher_node, "time", clock)
    program = lp.Program("test")
    source = program.add_node(lp.CourierNode(programs.Source), label="source")
    cacher = program.add_node(lp.CacherNode(source, 60_000, 2_000), label="cacher")
    manager = lp.launch(program, "test_mt")
    client = manager.resolve(cacher)
    assert client.get_variables(["a"]) == {"a": 1}
    now += 1.9
    assert client.get_variables(["a"]) == {"a": 1}
    now += 0.2
    assert client.get_variables(["a"]) == {"a": 2} == client.get_variables(["a"])
    manager.stop_and_wait()


@pytest.fixture
def call_together(monkeypatch):
    """A function that makes calls, given as (args, kwargs), in order and returns their results."""
    is_queued, may_take = threading.Semaphore(0), threading.Event()

    class Calls(queue.SimpleQueue):
        def put(self, call):
            super().put(call)
            is_queued.release()

        def get(self, timeout=None):
            assert may_take.wait(60)
            return super().get(timeout=timeout)

    queues = types.SimpleNamespace(SimpleQueue=Calls, Empty=queue.Empty)
    monkeypatch.setattr(courier_utils, "queue", queues)

    def call_all(handler, *calls):
        may_take.clear()
        with futures.ThreadPoolExecutor(len(calls)) as pool:
            running = []
            for args, kwargs in calls:
                running.append(pool.submit(handler, *args, **kwargs))
                assert is_queued.acquire(timeout=60)
            may_take.set()
            return [each.exception(60) or each.result() for each in running]

    return call_all


@pytest.mark.parametrize(("pad_batch", "num_rows"), [(False, 2), (True, 4)])
def test_structures_are_batched_by_element(call_together, pad_batch, num_rows):
    seen = []

    def compute(values, scale):
        seen.append((values["x"].shape, len(scale)))
        return {"sum": values["x"].sum(axis=1), "scale": (scale, values["x"] * 2)}

    handler = lp.batched_handler(batch_size=4, timeout=0.1, pad_batch=pad_batch)(compute)
    calls = [(({"x": np.full(3, i)},), {"scale": i}) for i in range(2)]
    for i, result in enumerate(call_together(handler, *calls)):
        assert result["sum"] == 3 * i and result["scale"][0] == i
        np.testing.assert_array_equal(result["scale"][1], np.full(3, 2 * i))
    assert seen == [((num_rows, 3), num_rows)]


def test_a_batch_takes_calls_of_any_style(call_together):
    """Previously, if callers passed arguments differently, some were lost or the batch failed."""
    seen = []

    def add(x, y=0, *more, factor=1, **named):
        seen.append((x, y, more, factor, named))
        return [sum(row) for row in zip(x, y, strict=True)]

    handler = lp.batched_handler(batch_size=3, timeout=60)(add)
    calls = [((), {"x": 1}), ((2, 5), {}), ((), {"y": 7, "x": 3, "factor": 2})]
    for order in (calls, calls[::-1]):
        assert call_together(handler, *order) in ([1, 7, 10], [10, 7, 1])
    assert seen[0] == ([1, 2, 3], [0, 5, 7], (), [1, 1, 2], {})
    call_together(handler, ((1, 2), {}), ((3, 4), {}), ((5, 6), {}))
    assert seen[-1] == ([1, 3, 5], [2, 4, 6], (), 1, {})  # No call passed a factor.
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        handler(y=1)  # It fails immediately, without waiting for a batch.
    for error in call_together(handler, ((1,), {"a": 1}), ((1,), {"b": 1}), ((1,), {})):
        assert isinstance(error, ValueError) and "same keys" in str(error)
    two_rows = lp.batched_handler(batch_size=3, timeout=datetime.timedelta(0, 0.01))(
        lambda x: [1, 2]
    )
    with pytest.raises(ValueError, match="got 1 calls and returned 2 results"):
        two_rows(1)
    same = lp.batched_handler(batch_size=2, timeout=60)(lambda x=None: [repr(x)] * 2)
    for calls in ([((), {}), (({},), {})], [(({},), {}), ((), {})]):
        assert call_together(same, *calls)[0] in ("[None, {}]", "[{}, None]")
    array = np.ones(2)  # Beside a default, arrays are a list, in any order.
    kinds = lp.batched_handler(batch_size=2, timeout=60)(lambda x=None: [type(x).__name__] * 2)
    for calls in ([((), {}), ((array,), {})], [((array,), {}), ((), {})]):
        assert call_together(kinds, *calls) == ["list"] * 2
    assert call_together(kinds, ((array,), {}), ((array,), {})) == ["ndarray"] * 2


# -- colocation --------------------------------------------------------------------------


class _WhoAmI:
    """Returns the id of the stop event of the node in which it runs."""

    def __init__(self):
        self.batched = lp.batched_handler(batch_size=1)(self.batched)

    def plain(self):
        return id(lp.stop_event())

    def batched(self, numbers):
        return [id(lp.stop_event()) for _ in numbers]


def test_a_batched_method_runs_in_its_node():
    """Previously, its threads used the program launched last, or failed if there were several."""
    managers, clients = [], []
    for _ in range(2):
        program = lp.Program("test")
        handle = program.add_node(lp.CourierNode(_WhoAmI), label="node")
        managers.append(lp.launch(program, "test_mt"))
        clients.append(managers[-1].resolve(handle))
    plain = [client.plain() for client in clients]
    assert [client.batched(1) for client in clients] == plain and plain[0] != plain[1]
    for manager in managers:
        manager.stop_and_wait()


def test_colocated_nodes_share_a_process_or_a_machine(engine, tmp_path):
    program, recorder = programs.recorder_program(tmp_path / "entries")
    producer = lp.CourierNode(programs.Producer, 5)
    handle = producer.create_handle()
    inner = [lp.PyNode(programs.tell_pid, recorder, name) for name in "abc"]
    loop = lp.PyNode(programs.leave_on_stop, recorder)
    together = lp.MultiThreadingColocation([producer, *inner[:2], loop])
    # On one machine, but in processes of their own.
    program.add_node(lp.MultiProcessingColocation([together, inner[2]]), label="colocated")
    manager = lp.launch(program, engine, termination_notice_secs=100)
    assert manager.resolve(handle).produce(3) == 15
    client = manager.resolve(recorder)
    wait_until(lambda: len(client.entries()) == 4)
    pids = dict(e for e in client.entries() if e != "waiting")
    assert pids["a"] == pids["b"]
    are_threads = engine == lp.LaunchType.TEST_MULTI_THREADING
    assert (pids["a"] == os.getpid()) == (pids["a"] == pids["c"]) == are_threads
    assert manager.wait(timeout=0.1) is False
    manager.stop_and_wait()
    assert (tmp_path / "entries").read_text().endswith("left\n")


def test_a_colocation_raises_the_error_of_the_first_failed_part():
    """A subclass may see it."""
    seen = []

    class Own(lp.MultiThreadingColocation):
        def run(self):
            with pytest.raises(ValueError, match="one part is broken") as caught:
                super().run()
            seen.append(caught.value)

    program = lp.make_program(Own([lp.PyNode(programs.fail_beside_others)]))
    with pytest.raises(lp.NodeFailedError, match="one part is broken"):
        lp.launch(program, "test_mt").wait(timeout=60)
    assert len(seen) == 1


def test_a_failed_part_ends_the_colocation():
    program, recorder = programs.recorder_program()
    parts = [
        lp.PyNode(programs.leave_on_stop, recorder),
        lp.PyNode(programs.work_until_interrupted, recorder),
        lp.PyNode(programs.fail_beside_others),
    ]
    program.add_node(lp.MultiThreadingColocation(parts), label="colocated")
    with pytest.raises(lp.NodeFailedError, match="ValueError: one part is broken") as caught:
        lp.launch(program, "test_mp").wait(timeout=90)
    assert caught.value.label == "colocated"


def test_a_blocked_part_does_not_keep_the_first_end_from_ending_a_colocation(monkeypatch, caplog):
    monkeypatch.setattr(colocation, "_PARTS_SECS", 0.1)
    program = lp.Program("test")
    stopped = threading.Event()
    parts = [lp.PyNode(programs.block_for_ever), lp.PyNode(int)]
    parts.append(lp.PyNode(lambda: lp.wait_for_stop() and stopped.set()))
    program.add_node(
        lp.MultiThreadingColocation(parts, return_on_first_completed=True), label="colocated"
    )
    manager = lp.launch(program, "test_mt")
    try:
        assert manager.wait(timeout=60)
    finally:
        manager.kill()
    assert "left behind after 0.1 s: colocated/0 part 0" in caplog.text
    assert stopped.wait(60), "the others are asked to stop"


def test_a_part_that_ended_before_a_server_was_there_has_been_work():
    """A program of servers alone would run until it is stopped."""
    threads = []

    class Late:
        def __init__(self):
            wait_until(lambda: threads and not threads[0].is_alive())

    parts = [lp.CourierNode(Late), lp.PyNode(lambda: threads.append(threading.current_thread()))]
    program = lp.make_program(lp.MultiThreadingColocation(parts))
    assert lp.launch(program, "test_mt").wait(timeout=60)


_TWICE = """
import queue, sys, threading, time
import launchpad as lp

struck = threading.Event()

def strike(frame, event, function):
    if event == "c_return" and type(getattr(function, "__self__", None)) is queue.SimpleQueue:
        sys.setprofile(None)
        struck.set()
        raise SystemExit

def go_on():
    struck.wait()
    time.sleep(1.0)  # A colocation that takes both parts for ended does not wait for this.
    print("went on")

program = lp.Program("test")
parts = [lp.PyNode(sys.setprofile, strike), lp.PyNode(go_on)]
program.add_node(lp.MultiThreadingColocation(parts), label="colocated")
lp.launch(program, "local_mt").wait()
print("waited")
"""


@pytest.mark.processes
def test_a_part_that_tells_its_end_twice_does_not_end_the_others():
    """Acme's stop handlers raise SystemExit in the thread of a node that has already ended."""
    told = subprocess.check_output(
        [*forked.python(), "-c", _TWICE],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        timeout=100,
        text=True,
    )
    assert told == "went on\nwaited\n"


@pytest.mark.parametrize("is_colocated", [False, True])
def test_a_node_in_a_thread_that_fails_leaves_no_program_that_it_has_launched(is_colocated):
    inner: list[lp.ProgramManager] = []

    def launch_and_fail():
        program = lp.Program("inner")
        program.add_node(lp.PyNode(lp.wait_for_stop), label="inner")
        inner.append(lp.launch(program, "local_mt"))
        if len(inner) == 1:
            raise ValueError("once")
        lp.wait_for_stop()

    node = lp.PyNode(launch_and_fail)
    program = lp.Program("outer")
    program.add_node(lp.MultiThreadingColocation([node]) if is_colocated else node, label="outer")
    policy = lp.RestartPolicy(max_restarts=1, initial_backoff_secs=0.01)
    manager = lp.launch(program, "test_mt", restart_policies={"outer": policy})
    try:
        wait_until(lambda: len(inner) == 2)
        assert inner[0].wait(timeout=60)
        assert not inner[1].wait(timeout=0.3)  # It belongs to the node that is running.
        manager.stop_and_wait()
        assert inner[1].wait(timeout=60)
    finally:
        for left in (manager, *inner):
            left.kill()
