"""Nodes and programs beyond the basic ones."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import os
import pickle
import queue
import threading
import time
import types
from concurrent import futures

import cloudpickle
import numpy as np
import pytest

import launchpad as lp
from launchpad.engines import serialization
from launchpad.nodes import base, colocation, dereference
from launchpad.nodes import batching as courier_utils
from launchpad.nodes import cacher as cacher_node
from launchpad.rpc import client as rpc_client
from tests.launchpad import programs
from tests.waiting import wait_until

_wait_until = functools.partial(wait_until, seconds=90.0)


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
    address.bind(lp.SimpleLocalAddressBuilder())
    assert lp.get_port_from_address(address.resolve()) > 0
    monkeypatch.setenv("LP_PORT_demo", "81")
    assert lp.get_port_from_address("somewhere:demo") == 81


@dataclasses.dataclass(frozen=True)
class _Frozen:
    handle: object
    derived: int = dataclasses.field(init=False, default=3)


class _Handle(base.Handle):
    def dereference(self):
        return "client"


def test_handles_are_found_in_any_tree():
    handle = _Handle()
    untouched = [1, {"a": (2,)}]
    tree = {
        "frozen": _Frozen(handle),
        "partial": functools.partial(max, handle, key=handle),
        "deferred": lp.Deferred(dict, a=[handle]),
        "untouched": untouched,
    }
    tree["self"] = [tree]
    found = dereference.dereference_tree(tree)
    assert found["frozen"] == _Frozen("client") and found["frozen"].derived == 3
    assert found["partial"].args == ("client",) and found["partial"].keywords == {"key": "client"}
    assert found["deferred"] == {"a": ["client"]}
    assert found["untouched"] is untouched
    assert tree["frozen"].handle is handle, "the arguments themselves must not change"
    assert base.extract_handles(tree) == [handle] * 4


@dataclasses.dataclass(frozen=True)
class _HandleWithFields(_Handle):
    label: str


def test_a_handle_with_fields_is_a_handle():
    """Previously, it was mistaken for a container and left unchanged."""
    handle = _HandleWithFields("a")
    tree = [handle, _Frozen(handle)]
    assert dereference.dereference_tree(tree) == ["client", _Frozen("client")]
    assert base.extract_handles(tree) == [handle, handle]


def test_a_deferred_object_is_made_once_in_a_node():
    shared = lp.Deferred(list)
    made = []
    args = (shared, {"again": shared}, lp.Deferred(_Frozen, shared), lp.Deferred(list))
    for each in (pickle.loads(pickle.dumps(args)), args):
        lp.PyNode(lambda *found: made.append(found), *each).execute()
    for one, tree, frozen, other in made:
        assert tree["again"] is one and frozen.handle is one and other is not one
    assert made[0][0] is not made[1][0]


def test_plain_leaves_are_passed_over():
    """Previously, a list of two million numbers took ten seconds."""
    visited = []
    handle = _Handle()
    tree = [1, 2.0, "text", b"bytes", None, True, handle, {"a": 1, "b": [handle]}, ()]
    assert dereference.map_tree(lambda leaf: visited.append(leaf) or leaf, tree) is tree
    assert visited == [handle, handle]


def test_nodes_pickle():
    _, recorder = programs.recorder_program()
    for node in (
        lp.PyNode(lambda r: r, recorder),
        lp.CourierNode(programs.Recorder),
        lp.ReverbNode(list),
        lp.CacherNode(recorder, 10, 20),
        lp.MultiThreadingColocation([lp.PyNode(print)]),
    ):
        again = cloudpickle.loads(cloudpickle.dumps(node))
        assert [a.key for a in again.addresses] == [a.key for a in node.addresses]


def test_a_configured_node_gets_its_arguments_late():
    node = lp.CourierNode(programs.Producer)
    node.configure(factor=4)
    program = lp.Program("test")
    handle = program.add_node(node, label="producer")
    manager = lp.launch(program, "test_mt")
    assert manager.resolve(handle).produce(2) == 8
    manager.stop_and_wait()


def test_a_colocation_has_what_its_nodes_get_late():
    node, other = lp.CourierNode(programs.Producer), lp.CourierNode(programs.Producer)
    outer = lp.MultiThreadingColocation([lp.MultiThreadingColocation([node])])
    address, handle = lp.Address("late"), other.create_handle()
    node.allocate_address(address)
    node.configure(handle)
    assert outer.input_handles == [handle]
    assert outer.addresses == [node.courier_address, address]
    node.configure(factor=4)
    assert outer.input_handles == []


def test_functions_of_a_program_need_one():
    for function in (lp.stop, lp.stop_event, lp.wait_for_stop, lp.context.get_context):
        with pytest.raises(RuntimeError, match="no Launchpad program runs here"):
            function()
    assert lp.is_local_launch("local_mp") and not lp.is_local_launch("test_mp")
    assert lp.is_local_launch_or_test(lp.LaunchType.TEST_MULTI_THREADING)
    with pytest.raises(NotImplementedError):
        lp.make_program_stopper("vertex_ai")


def test_a_node_without_a_launch_serves_at_a_given_port():
    port = lp.get_port_from_address(lp.SimpleLocalAddressBuilder().build())
    node = lp.CourierNode(programs.Source, courier_kwargs={"port": port})
    node.bind_addresses()
    threading.Thread(target=node.run, daemon=True).start()
    client = lp.CourierClient(f"127.0.0.1:{port}", call_timeout=60)
    assert client.calls() == 0


def test_a_program_stopper_stops_the_program():
    program, _ = programs.recorder_program()
    manager = lp.launch(program, "test_mt")
    lp.make_program_stopper("test_mt")()
    assert manager.wait(timeout=60)


# -- restarts ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["exception", "signal"])
def test_a_node_with_a_policy_comes_back(engine, way):
    if way == "signal" and engine == lp.LaunchType.TEST_MULTI_THREADING:
        way = "exception"  # A thread can't be killed by a signal alone.
    program, recorder = programs.recorder_program()
    fragile = program.add_node(lp.CourierNode(programs.Fragile, way, 2, recorder), label="fragile")
    policy = lp.RestartPolicy(max_restarts=2, initial_backoff_secs=0.1)
    manager = lp.launch(program, engine, restart_policies={"fragile": policy})
    entries = manager.resolve(recorder)
    client = manager.resolve(fragile)
    _wait_until(lambda: entries.entries().count("born") == 3)
    assert client.life() == 3  # The same client finds the new incarnation.
    assert [restart.node for restart in manager.restarts] == ["fragile/0", "fragile/0"]
    if way == "exception":
        assert manager.restarts[1].reason == "OSError: death number 2"
    manager.stop_and_wait()


def test_too_many_deaths_are_fatal(engine, caplog):
    program, recorder = programs.recorder_program()
    node = lp.CourierNode(programs.Fragile, "exception", 9, recorder)
    node.restart_policy = lp.RestartPolicy(max_restarts=1, initial_backoff_secs=0.1)
    program.add_node(node, label="fragile")
    with pytest.raises(lp.NodeFailedError, match="OSError: death number 2"):
        lp.launch(program, engine).wait(timeout=90)
    assert "fragile/0 failed: OSError: death number 1; restart 1 of 1 in 0.1 s" in caplog.text
    assert 'raise OSError(f"death number {lives}")' in caplog.text


def test_a_policy_limits_restarts():
    policy = lp.RestartPolicy(
        max_restarts=4, initial_backoff_secs=0.5, max_backoff_secs=3, reset_after_secs=60
    )
    count = policy.count()
    assert [count.next_pause(lived=1) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, None]
    assert count.next_pause(lived=61) == 0.5
    for wrong in (
        {"max_restarts": -1},
        {"reset_after_secs": -1.0},
        {"max_backoff_secs": float("nan")},
    ):
        with pytest.raises(ValueError, match="negative"):
            lp.RestartPolicy(**wrong)
    told = "^frozen_after_secs=1: expected at least 10 .*every 2 s.* or None to wait forever$"
    with pytest.raises(ValueError, match=told):
        lp.RestartPolicy(frozen_after_secs=1)
    assert lp.RestartPolicy(frozen_after_secs=None) != lp.RestartPolicy(frozen_after_secs=10.0)


# -- caches and batches ------------------------------------------------------------------


def test_a_cacher_asks_its_source_rarely(engine):
    program = lp.Program("test")
    source = program.add_node(lp.CourierNode(programs.Source), label="source")
    cacher = program.add_node(lp.CacherNode(source, 300, 60_000), label="cacher")
    manager = lp.launch(program, engine)
    client, origin = manager.resolve(cacher), manager.resolve(source)
    started = time.monotonic()
    first = client.get_variables(["a", "b"])
    assert first == {"a": 1, "b": 1}
    for _ in range(50):
        client.get_variables(["a", "b"])
    calls = origin.calls()
    assert calls <= 2 + (time.monotonic() - started) / 0.3  # A busy machine takes seconds.
    assert client.get_variables(["a"]).keys() == {"a"}  # Other arguments have another answer.
    _wait_until(lambda: client.get_variables(["a", "b"])["a"] > 3)  # It is refreshed.
    assert rpc_client.list_methods(client) == rpc_client.list_methods(origin)
    with pytest.raises(KeyError, match="from the source"):
        client.fail()
    manager.stop_and_wait()
    with pytest.raises(ValueError, match="positive"):
        lp.CacherNode(source, 0, 10)


class _PartlyBroken(programs.Source):
    """Has a method that blocks once the other one has been called."""

    def __init__(self):
        super().__init__()
        self._released = threading.Event()

    def block(self) -> int:
        if self.calls():
            self._released.wait()
        return self.calls()

    def release(self) -> None:
        self._released.set()


def test_a_cacher_refreshes_the_other_answers_while_one_does_not_come(caplog):
    program = lp.Program("test")
    node = lp.CourierNode(_PartlyBroken)
    source, patient = program.add_node(node, label="source"), node.create_handle()
    source.set_client_kwargs(call_timeout=2.0)
    cacher = program.add_node(lp.CacherNode(source, 100, 300_000), label="cacher")
    manager = lp.launch(program, "test_mt")
    client = manager.resolve(cacher)

    def num_given_up():
        return caplog.text.count("not refreshed: call of block() on source/0 took longer")

    def is_answered(call):
        with contextlib.suppress(lp.CourierDeadlineError):  # A busy machine may be this slow.
            call()
            return True

    _wait_until(lambda: is_answered(client.block))  # The first to be refreshed.
    _wait_until(lambda: is_answered(lambda: client.get_variables(["a"])))
    _wait_until(num_given_up)
    # Its refreshes continue, and more often than once each time that the other call is given up.
    _wait_until(lambda: client.get_variables(["a"])["a"] > 5 + 2 * num_given_up())
    now = client.get_variables(["a"])["a"]
    _wait_until(lambda: client.get_variables(["a"])["a"] > now + 5)
    assert client.block() == 0  # The old answer is still valid.
    manager.resolve(patient).release()
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


@pytest.mark.parametrize("pad_batch", [False, True])
def test_concurrent_calls_are_batched(pad_batch, monkeypatch):
    collect, num_calls = courier_utils._Batcher._collect, [6]

    def collect_from_all(batcher):
        if num_calls:
            expected = num_calls.pop()
            _wait_until(lambda: batcher._calls.qsize() == expected)
        return collect(batcher)

    monkeypatch.setattr(courier_utils._Batcher, "_collect", collect_from_all)
    program = lp.Program("test")
    node = lp.CourierNode(programs.Batched, 4, pad_batch)
    handle = program.add_node(node, label="batched")
    manager = lp.launch(program, "test_mt")
    client = manager.resolve(handle)
    calls = [client.futures.compute({"x": np.full(3, i)}, scale=i) for i in range(6)]
    for i, call in enumerate(calls):
        result = call.result(timeout=60)
        assert result["sum"] == 3 * i and result["scale"][0] == i
        np.testing.assert_array_equal(result["scale"][1], np.full(3, 2 * i))
    last = ((4, 3), 4) if pad_batch else ((2, 3), 2)
    assert client.seen() == [((4, 3), 4), last]
    with pytest.raises(ValueError, match="no scale"):
        client.compute({"x": np.zeros(3)}, scale=None)
    manager.stop_and_wait()


@pytest.fixture
def call_together(monkeypatch):
    """A function that makes calls, given as (args, kwargs), in order and returns their results."""
    is_queued = threading.Semaphore(0)

    class Calls(queue.SimpleQueue):
        def put(self, call):
            super().put(call)
            is_queued.release()

    queues = types.SimpleNamespace(SimpleQueue=Calls, Empty=queue.Empty)
    monkeypatch.setattr(courier_utils, "queue", queues)

    def call_all(handler, *calls):
        with futures.ThreadPoolExecutor(len(calls)) as pool:
            running = []
            for args, kwargs in calls:
                running.append(pool.submit(handler, *args, **kwargs))
                assert is_queued.acquire(timeout=60)
            return [each.exception(60) or each.result() for each in running]

    return call_all


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
    same = lp.batched_handler(batch_size=2, timeout=60)(lambda x=None: [repr(x)] * 2)
    for calls in ([((), {}), (({},), {})], [(({},), {}), ((), {})]):
        assert call_together(same, *calls)[0] in ("[None, {}]", "[{}, None]")


def test_arrays_beside_a_default_are_a_list_in_any_order(call_together):
    """Previously, the first call decided, and the batch failed if that one had the array."""
    seen = []

    def masked(x, mask=None):
        seen.append((x, mask))
        return x

    handler = lp.batched_handler(batch_size=2, timeout=60)(masked)
    x = np.ones(2)
    for order in ([x, None], [None, x]):
        calls = [((x,), {} if mask is None else {"mask": mask}) for mask in order]
        np.testing.assert_array_equal(call_together(handler, *calls), [x, x])
        assert [mask is None for mask in seen[-1][1]] == [mask is None for mask in order]
        assert isinstance(seen[-1][0], np.ndarray) and isinstance(seen[-1][1], list)


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


def test_batched_handlers_are_checked():
    def two_rows(values):
        return [1, 2]

    handler = lp.batched_handler(batch_size=3, timeout=datetime.timedelta(seconds=0.01))(two_rows)
    with pytest.raises(ValueError, match="got 1 calls and returned 2 results"):
        handler(1)
    with pytest.raises(TypeError, match="not bound"):
        lp.batched_handler(batch_size=2)(programs.Batched.compute)
    with pytest.raises(ValueError, match="positive"):
        lp.batched_handler(batch_size=0)


# -- colocation --------------------------------------------------------------------------


def test_colocated_nodes_share_a_process(engine, tmp_path):
    program, recorder = programs.recorder_program(tmp_path / "entries")
    producer = lp.CourierNode(programs.Producer, 5)
    handle = producer.create_handle()
    inner = [lp.PyNode(programs.tell_pid, recorder, name) for name in "ab"]
    loop = lp.PyNode(programs.leave_on_stop, recorder)
    program.add_node(lp.MultiThreadingColocation([producer, *inner, loop]), label="colocated")
    manager = lp.launch(program, engine, termination_notice_secs=100)
    assert manager.resolve(handle).produce(3) == 15
    client = manager.resolve(recorder)
    _wait_until(lambda: len(client.entries()) == 3)
    pids = dict(e for e in client.entries() if e != "waiting")
    assert pids["a"] == pids["b"]
    assert (pids["a"] == os.getpid()) == (engine == lp.LaunchType.TEST_MULTI_THREADING)
    assert manager.wait(timeout=0.1) is False
    manager.stop_and_wait()
    assert (tmp_path / "entries").read_text().endswith("left\n")


def test_processes_do_not_run_as_threads():
    """Previously, such a part was accepted and failed when it ran."""
    outer = lp.MultiThreadingColocation([])
    inner = lp.MultiProcessingColocation([lp.PyNode(print)])
    with pytest.raises(ValueError, match="got a MultiProcessingColocation; put the"):
        outer.add_node(inner)
    inner.add_node(outer)


def test_a_failed_part_ends_the_colocation(engine):
    program, recorder = programs.recorder_program()
    parts = [
        lp.PyNode(programs.leave_on_stop, recorder),
        lp.PyNode(programs.work_until_interrupted, recorder),
        lp.PyNode(programs.fail_beside_others),
    ]
    program.add_node(lp.MultiThreadingColocation(parts), label="colocated")
    with pytest.raises(lp.NodeFailedError, match="ValueError: one part is broken") as caught:
        lp.launch(program, engine).wait(timeout=90)
    assert caught.value.label == "colocated"


@pytest.mark.parametrize("launch_type", ["test_mt", "test_mp"])
def test_a_failed_part_ends_the_program_although_another_part_is_blocked(launch_type):
    program = lp.Program("test")
    parts = [lp.PyNode(programs.block_for_ever), lp.PyNode(programs.fail_beside_others)]
    program.add_node(lp.MultiThreadingColocation(parts), label="colocated")
    manager = lp.launch(program, launch_type, termination_notice_secs=1)
    try:
        with pytest.raises(lp.NodeFailedError, match="ValueError: one part is broken"):
            manager.wait(timeout=60)
    finally:
        manager.kill()


def test_a_blocked_part_does_not_keep_the_first_end_from_ending_a_colocation(monkeypatch, caplog):
    monkeypatch.setattr(colocation, "_PARTS_SECS", 0.1)
    program = lp.Program("test")
    parts = [lp.PyNode(programs.block_for_ever), lp.PyNode(int)]
    program.add_node(
        lp.MultiThreadingColocation(parts, return_on_first_completed=True), label="colocated"
    )
    manager = lp.launch(program, "test_mt")
    try:
        assert manager.wait(timeout=60)
    finally:
        manager.kill()
    assert "left behind after 0.1 s: colocated/0 part 0" in caplog.text


def test_the_first_end_can_end_a_colocation():
    program, recorder = programs.recorder_program()
    parts = [
        lp.PyNode(programs.leave_on_stop, recorder),
        lp.PyNode(programs.tell_pid, recorder, "a"),
        lp.CourierNode(programs.Producer, 1),
    ]
    program.add_node(
        lp.MultiThreadingColocation(parts, return_on_first_completed=True), label="colocated"
    )
    assert lp.launch(program, "test_mt").wait(timeout=60)


def test_nodes_of_a_process_colocation_are_processes(tmp_path):
    program, recorder = programs.recorder_program(tmp_path / "entries")
    nodes = [lp.PyNode(programs.tell_pid, recorder, name) for name in "ab"]
    program.add_node(lp.MultiProcessingColocation(nodes), label="colocated")
    manager = lp.launch(program, "test_mp")
    client = manager.resolve(recorder)
    _wait_until(lambda: len(client.entries()) == 2)
    assert len(dict(client.entries()).keys() | set(dict(client.entries()).values())) == 4
    assert manager.wait(timeout=60)


# -- flags -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [6, "6"])
def test_flags_reach_processes(tmp_path, value):
    from absl import flags

    if "lp_demo_flag" not in flags.FLAGS:
        flags.DEFINE_integer("lp_demo_flag", 1, "For this test.")
    was_parsed = flags.FLAGS.is_parsed()
    flags.FLAGS(["program", "--lp_demo_flag=5", "--lp_termination_notice_secs=7"])
    try:
        program, recorder = programs.recorder_program(tmp_path / "entries")
        with program.group("reader"):
            program.add_node(lp.PyNode(programs.read_flags, recorder))
        resources = {"reader": lp.PythonProcess(args={"lp_demo_flag": value})}
        assert lp.launch(program, "test_mp", local_resources=resources).wait(timeout=90)
        assert (tmp_path / "entries").read_text() == "(7, 6)\n"
        resources = {"reader": lp.PythonProcess(args={"lp_demo_flag": "six"})}
        with pytest.raises(ValueError, match=r"_resources\['reader'\]: flag --lp_demo_flag=six: "):
            lp.launch(program, "test_mp", local_resources=resources)
    finally:
        flags.FLAGS.unparse_flags()
        flags.FLAGS["lp_termination_notice_secs"].unparse()
        if was_parsed:
            flags.FLAGS.mark_as_parsed()


def _define_flags(recorder):
    """Defines flags, as a module that is only imported in the node does."""
    from absl import flags

    flags.DEFINE_integer("lp_late_number", 1, "For this test.", short_name="lp_late")
    flags.DEFINE_bool("lp_late_switch", True, "For this test.")
    names = flags.DEFINE_multi_string("lp_late_names", ["x"], "For this test.")
    flags.DEFINE_list("lp_late_list", [], "For this test.")
    found = flags.FLAGS
    recorder.add((found.lp_late_number, found.lp_late_switch, names.value, found.lp_late_list))
    recorder.add((found.lp_late, found["lp_late_list"].flag_type(), found.lp_late_never))
    sent = pickle.loads(serialization.dump_flags())[1]
    recorder.add(sorted(name for name in sent if name.startswith("lp_late_")))
    with pytest.raises(flags.DuplicateFlagError, match=f", second from {__name__}"):
        flags.DEFINE_bool("lp_late_switch", True, "For this test.")


def test_text_for_a_flag_is_parsed_where_the_flag_is_defined(tmp_path):
    """Previously, the text was used as the value, so that "false" was true."""
    program, recorder = programs.recorder_program(tmp_path / "entries")
    program.add_node(lp.PyNode(_define_flags, recorder), label="node")
    args = {
        "lp_late_number": "5",
        "lp_late_switch": "false",
        "lp_late_names": ["a", "b"],
        "lp_late_list": "x,y",
        "lp_late_never": "text",
    }
    resources = {"node": lp.PythonProcess(args=args)}
    assert lp.launch(program, "test_mp", local_resources=resources).wait(timeout=90)
    assert (tmp_path / "entries").read_text() == (
        "(5, False, ['a', 'b'], ['x', 'y'])\n(5, 'comma separated list of strings', 'text')\n"
        f"{sorted(args)}\n"  # The flags that programs launched by the node receive.
    )


def _loop_after_a_program(recorder, looping):
    program = lp.Program("inner")
    program.add_node(lp.PyNode(int), label="inner")
    lp.launch(program, "local_mt").wait()
    recorder.add("looping")
    try:
        looping.touch()  # The call above has returned, so the client is connected.
        while True:
            time.sleep(0.02)
    finally:
        recorder.add("interrupted")


@pytest.mark.parametrize("launch_type", ["test_mt", "test_mp"])
def test_a_node_that_has_launched_a_program_is_interrupted_as_others_are(tmp_path, launch_type):
    program, recorder = programs.recorder_program(tmp_path / "entries")
    looping = tmp_path / "looping"
    program.add_node(lp.PyNode(_loop_after_a_program, recorder, looping), label="node")
    manager = lp.launch(program, launch_type, termination_notice_secs=300)
    deadline = time.monotonic() + 90
    while not looping.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    manager.stop()
    assert manager.wait(timeout=90)
    assert (tmp_path / "entries").read_text().split() == ["looping", "interrupted"]


def test_a_colocation_of_threads_has_one_restart_policy():
    node = lp.PyNode(print)
    node.restart_policy = lp.RestartPolicy()
    with pytest.raises(ValueError, match="without a restart policy, .*; set it on the colocation"):
        lp.MultiThreadingColocation([node])


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
        _wait_until(lambda: len(inner) == 2)
        assert inner[0].wait(timeout=60)
        assert not inner[1].wait(timeout=0.3)  # It belongs to the node that is running.
        manager.stop_and_wait()
        assert inner[1].wait(timeout=60)
    finally:
        for left in (manager, *inner):
            left.kill()


def test_waiting_for_some_of_the_nodes(caplog):
    release = threading.Event()
    program = lp.Program("some")
    for label, function in (("short", int), ("long", release.wait)):
        program.add_node(lp.PyNode(function), label=label)
    resources = {"elsewhere": lp.PythonProcess()}
    manager = lp.launch(program, "test_mt", local_resources=resources)
    assert "local_resources names ['elsewhere']" in caplog.text
    assert manager.wait(labels_to_wait_for=["short"], timeout=60)
    assert manager.wait(return_on_first_completed=True, timeout=60)
    assert not manager.wait(labels_to_wait_for=["long"], timeout=0.3)
    assert not manager.wait(labels_to_wait_for=[], timeout=0.3)  # Waits for all, as in upstream.
    with pytest.raises(ValueError, match=r"expected groups out of \['long', 'short'\], got"):
        manager.wait(labels_to_wait_for=["missing"])
    release.set()
    assert manager.wait([]) and manager.is_done


def test_a_failure_can_be_left_unraised():
    program = lp.Program("fails")
    program.add_node(lp.PyNode(int, "no number"), label="fails")
    manager = lp.launch(program, "test_mt")
    assert manager.wait(raise_error=False, timeout=60)
    with pytest.raises(lp.NodeFailedError, match="no number"):
        manager.wait(timeout=60)


def test_stop_handlers_are_allowed_outside_a_program():
    def never():
        raise AssertionError("nothing stops here")

    lp.register_stop_handler(never)
    lp.unregister_stop_handler(never)
