"""Rows that are copied to the replicas' devices ahead of the steps.

Parts of the CPU stand in for GPUs: the operations and their order are the same, the copies are not.
"""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.step.inputs import pump as pump_lib
from rl_replicator.step.inputs import sources

ROWS_AHEAD = 3  # Two in the queue; one waits for its place in it.


@pytest.fixture
def replicator(monkeypatch):
    made = rr.make("multi_device:2")
    devices = tuple(f"/cpu:{i}" for i in range(made.num_replicas))
    monkeypatch.setattr(type(made._host), "input_devices", devices)
    return made


@pytest.fixture
def held(monkeypatch):
    """Returns a function that waits until each device holds a number of rows of int64 scalars."""
    made = []
    maps = pump_lib.DeviceRows.put

    def put(rows, *arguments):
        made.append(rows)
        return maps(rows, *arguments)

    monkeypatch.setattr(pump_lib.DeviceRows, "put", put)

    def sizes():
        for name, device in made[-1]._maps.items():
            with tf.device(device):
                yield int(tf.raw_ops.MapSize(dtypes=[tf.int64], shared_name=name))

    def wait(expected):
        deadline = time.monotonic() + 60
        while set(sizes()) != {expected}:
            assert time.monotonic() < deadline, ([*sizes()], expected)
            time.sleep(0.01)

    return wait


@pytest.mark.parametrize("steps_per_call", [None, 3])
def test_each_replica_gets_its_element_whole(replicator, steps_per_call):
    n = replicator.num_replicas

    def element(i):
        return {
            "float": tf.fill([2], tf.cast(i, tf.float32)),
            "int32": tf.cast(i, tf.int32) + 1,
            "text": tf.strings.as_string(i),
            "key": tf.cast(i, tf.uint64),
            "ragged": tf.RaggedTensor.from_row_lengths(tf.fill([3], i), [1, 2]),
            "flag": i % 2 == 0,
        }

    def step_fn(x):
        assert x["float"].shape == [2] and x["key"].shape == []
        number = tf.strings.to_number(x["text"])
        return number, x["float"], x["int32"], x["key"], tf.reduce_sum(x["ragged"], 1), x["flag"]

    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(100).map(element))
    step = replicator.replicate(step_fn, inputs, steps_per_call)
    length = steps_per_call or 1
    for call in range(2):
        found = [np.reshape(x, [n, length, -1]) for x in replicator.gather(step())]
        for r in range(n):
            for k in range(length):
                i = (call * length + k) * n + r
                got = [x[r, k].tolist() for x in found]
                assert got == [[i], [i, i], [i + 1], [i], [i, 2 * i], [i % 2 == 0]]


def test_rows_wait_on_the_devices_and_leave_them(replicator, held):
    """With a step that takes them, with a restart, and with the input."""

    def use():
        inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(1000))
        step = replicator.replicate(lambda x: x, inputs)
        for _ in range(2):
            for _ in range(3):
                step()
                held(ROWS_AHEAD)
            inputs.restart()
            held(0)
            first = list(range(replicator.num_replicas))
            assert replicator.gather(step()).tolist() == first
            held(ROWS_AHEAD)
        return weakref.ref(inputs)

    reference = use()
    gc.collect()
    assert reference() is None
    held(0)


def test_a_row_that_comes_after_a_restart_is_dropped(replicator, held):
    release, waits = threading.Event(), threading.Event()

    def numbers():
        for i in range(100):
            if i == 2 * replicator.num_replicas:
                waits.set()
                release.wait(60)
            yield i

    data = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64))
    inputs = replicator.make_inputs(lambda context: data)
    before = set(threading.enumerate())
    replicator.replicate(lambda x: x, inputs)()
    assert waits.wait(60)
    (pump,) = [t for t in set(threading.enumerate()) - before if t.name == "input-pump"]
    inputs.restart()
    release.set()
    pump.join(60)
    assert not pump.is_alive()
    held(0)


def test_a_call_gets_the_rows_of_the_entries_it_takes(replicator, held):
    """Whatever happens to the input meanwhile: nothing could interrupt its wait for a row."""
    began, goes_on = threading.Event(), threading.Event()

    def wait(x):
        began.set()
        goes_on.wait(60)
        return x

    def step_fn(x):
        return tf.ensure_shape(tf.numpy_function(wait, [x], tf.int64), [])

    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(1000))
    step = replicator.replicate(step_fn, inputs, steps_per_call=8)
    call = step.begin()
    assert began.wait(60)
    held(ROWS_AHEAD)
    inputs.close()
    goes_on.set()
    with pytest.raises(rr.EndOfData):
        call.result(60)


def test_finite_data_is_used_to_its_last_example(replicator):
    data = tf.data.Dataset.range(1, 24).map(lambda x: tf.cast(x, tf.float32)).batch(4)

    def step_fn(taken):
        batch, mask = taken
        return tf.reduce_sum(batch * mask), tf.reduce_sum(mask)

    inputs = replicator.make_inputs(lambda context: data, pad_to=4)
    step = replicator.replicate(step_fn, inputs, 4)
    totals = np.zeros(2)
    with pytest.raises(rr.EndOfData):
        while True:
            totals += np.array(replicator.gather(step())).reshape(2, -1).sum(axis=1)
    assert totals.tolist() == [23 * 24 / 2, 23]


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="traces absent GPUs")
def test_rows_of_gpus_are_kept_there():
    """The rest of the pump must not wait for the steps on a GPU."""
    spec = (tf.TensorSpec([2, 3]), tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int32))
    rows = pump_lib.DeviceRows(spec, 2, ("/gpu:0", "/gpu:1"))
    assert [s.dtype for s in rows.entry_specs] == [tf.int64, *[tf.string, tf.int32] * 2]
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        row = [tf.zeros(s.shape, s.dtype) for s in spec] * 2
        rows.get(rows.put(tf.constant(1, tf.int64), row))
    found = {(op.type, op.device[-5:]) for op in graph.get_operations()}
    on_gpus = {(t, f"GPU:{i}") for t in ("MapStage", "MapUnstage") for i in range(2)}
    assert {(kind, device) for kind, device in found if device != "CPU:0"} == on_gpus


@pytest.mark.parametrize("prefetches", [True, False])
def test_prefetching_can_be_switched_off(replicator, monkeypatch, prefetches):
    made = []
    monkeypatch.setattr(sources, "make", lambda *arguments: made.append(arguments[-1]))
    with pytest.raises(TypeError):  # `None` stands in for the inputs.
        replicator.make_inputs(lambda context: None, prefetch_to_device=prefetches)
    assert [len(devices) for devices in made] == [prefetches and replicator.num_replicas]
