"""Rows that are copied to the replicas' devices ahead of the steps.

Parts of the CPU stand in for GPUs: the operations and their order are the same, the copies are not.
"""

import collections
import gc
import threading
import time
import weakref

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.backends import devices
from rl_replicator.step.inputs import datasets


@pytest.fixture(params=["single_device", "multi_device:2"])
def replicator(request, monkeypatch):
    made = rr.make(request.param)
    devices = tuple(f"/cpu:{i}" for i in range(made.num_replicas))
    monkeypatch.setattr(type(made._host), "input_devices", devices)
    return made


def num_held(rows):
    """Returns the number of rows on each device."""
    sizes = []
    for name, device in rows._maps.items():
        with tf.device(device):
            sizes.append(int(tf.raw_ops.MapSize(dtypes=rows._dtypes, shared_name=name)))
    return sizes


def await_held(rows, expected):
    """Waits until each device holds `expected` rows."""
    deadline = time.monotonic() + 60
    while set(num_held(rows)) != {expected}:
        assert time.monotonic() < deadline, (num_held(rows), expected)
        time.sleep(0.01)


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
    # Besides the number of a row, the queue holds what must not be on a device.
    kinds = collections.Counter(spec.dtype for spec in inputs._rows.entry_specs)
    assert kinds == {tf.int64: 1 + 2 * n, tf.int32: n, tf.string: n}
    step = replicator.replicate(step_fn, inputs, steps_per_call)
    length = steps_per_call or 1
    for call in range(2):
        found = [np.reshape(x, [n, length, -1]) for x in replicator.gather(step())]
        for r in range(n):
            for k in range(length):
                i = (call * length + k) * n + r
                got = [x[r, k].tolist() for x in found]
                assert got == [[i], [i, i], [i + 1], [i], [i, 2 * i], [i % 2 == 0]]


def test_rows_wait_on_the_devices_and_leave_them(replicator):
    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(1000))
    step = replicator.replicate(lambda x: x, inputs)
    ahead = datasets._READ_AHEAD + 1  # One waits for its place in the queue.
    for _ in range(3):
        step()
        await_held(inputs._rows, ahead)
    inputs.restart()
    assert replicator.gather(step()).tolist() == list(range(replicator.num_replicas))
    await_held(inputs._rows, ahead)


def test_rows_leave_the_devices_with_the_input(replicator):
    def use():
        inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(1000))
        replicator.replicate(lambda x: x, inputs)()
        await_held(inputs._rows, datasets._READ_AHEAD + 1)
        rows.append(inputs._rows)
        return weakref.ref(inputs)

    rows = []
    reference = use()
    gc.collect()
    assert reference() is None
    await_held(rows[0], 0)


def test_rows_leave_the_devices_with_an_input_that_was_restarted(replicator):
    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(1000))
    step = replicator.replicate(lambda x: x, inputs)
    step()
    rows = inputs._rows
    await_held(rows, datasets._READ_AHEAD + 1)
    inputs.restart()
    del inputs, step
    gc.collect()
    await_held(rows, 0)


def test_a_row_that_comes_after_a_restart_is_dropped(replicator):
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
    assert not pump.is_alive() and set(num_held(inputs._rows)) == {0}


def test_a_call_gets_the_rows_of_the_entries_it_takes(replicator):
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
    await_held(inputs._rows, datasets._READ_AHEAD + 1)
    inputs.close()
    goes_on.set()
    with pytest.raises(rr.EndOfData):
        call.result(60)


@pytest.mark.parametrize("steps_per_call", [None, 4])
def test_finite_data_is_used_to_its_last_example(replicator, steps_per_call):
    data = tf.data.Dataset.range(1, 24).map(lambda x: tf.cast(x, tf.float32)).batch(4)

    def step_fn(taken):
        batch, mask = taken
        return tf.reduce_sum(batch * mask), tf.reduce_sum(mask)

    inputs = replicator.make_inputs(lambda context: data, pad_to=4)
    step = replicator.replicate(step_fn, inputs, steps_per_call)
    for _ in range(2):
        totals = np.zeros(2)
        with pytest.raises(rr.EndOfData):
            while True:
                totals += np.array(replicator.gather(step())).reshape(2, -1).sum(axis=1)
        assert totals.tolist() == [23 * 24 / 2, 23]
        inputs.restart()


def test_prefetching_can_be_switched_off(replicator):
    data = tf.data.Dataset.range(1000)
    inputs = replicator.make_inputs(lambda context: data, prefetch_to_device=False)
    assert inputs._rows.entry_specs == inputs.specs
    step = replicator.replicate(lambda x: x, inputs)
    assert replicator.gather(step()).tolist() == list(range(replicator.num_replicas))


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="traces absent GPUs")
def test_rows_of_gpus_are_kept_there(monkeypatch):
    names = ("/gpu:0", "/gpu:1")
    monkeypatch.setattr(devices, "_available", lambda: names)
    replicator = rr.MultiDeviceReplicator(devices=names)
    data = tf.data.Dataset.from_tensors((tf.ones([2, 3]), "text"))
    inputs = replicator.make_inputs(lambda _: data.repeat())
    step = replicator.replicate(lambda x: tf.reduce_sum(x[0]), inputs, steps_per_call=2)
    found = collections.Counter()
    for function in (step._compiled, inputs._mover._compiled):
        for part in function.graph.as_graph_def().library.function:
            for node in part.node_def:
                device = node.device.rpartition("device:")[-1]
                if node.op in ("MapStage", "MapUnstage", "Sum", "QueueDequeueV2"):
                    found[node.op, device] += 1
                elif function is inputs._mover._compiled:
                    # The rest of the pump must not wait for the steps on a GPU. Iterators do not.
                    assert device == "CPU:0" or "_class" in node.attr, node
    assert found == {
        (op, device): 1 for op in ("MapStage", "MapUnstage", "Sum") for device in ("GPU:0", "GPU:1")
    } | {("QueueDequeueV2", "CPU:0"): 1}
