"""Inputs from a real replay table: cancelled while it is empty, used when it has data."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr


@pytest.mark.parametrize("name", ["single_device", "multi_device:2"])
def test_cancel_while_a_replay_table_is_empty(name):
    reverb = pytest.importorskip("reverb")
    table = reverb.Table.queue("t", 100, signature=tf.TensorSpec([3], tf.float32))
    server = reverb.Server([table])
    replicator = rr.make(name)

    def input_fn(context):
        return reverb.TimestepDataset.from_table_signature(
            f"localhost:{server.port}", "t", max_in_flight_samples_per_worker=1
        ).batch(2)

    def step_fn(sample):
        return {"key": sample.info.key, "data": sample.data}

    inputs = replicator.make_inputs(input_fn)
    step = replicator.replicate(step_fn, inputs, steps_per_call=2)
    threading.Timer(0.3, step.cancel).start()
    start = time.monotonic()
    with pytest.raises(rr.StepCancelled):
        step()
    assert time.monotonic() - start < 10
    client = server.localhost_client()
    count = 4 * replicator.num_replicas  # Two steps of batches of 2.
    for i in range(count):
        client.insert(np.full([3], i, np.float32), {"t": 1.0})
    outputs = replicator.gather(step())
    assert outputs["key"].dtype == np.uint64
    assert outputs["key"].shape == (replicator.num_replicas, 2, 2)
    assert len(set(outputs["key"].ravel().tolist())) == count
    in_order = outputs["data"][..., 0].transpose(1, 0, 2).ravel()  # [K, N, B]
    np.testing.assert_array_equal(in_order, np.arange(count))
    inputs.close()
    server.stop()


def test_ragged_and_nested_elements():
    def input_fn(context):
        ragged = tf.ragged.constant([[1], [2, 3], [], [4]])
        return tf.data.Dataset.from_tensor_slices({"a": ragged, "b": ([1, 2, 3, 4],)}).batch(2)

    replicator = rr.SingleDeviceReplicator()
    step = replicator.replicate(
        lambda x: (tf.reduce_sum(x["a"], axis=1), x["b"][0]), replicator.make_inputs(input_fn)
    )
    assert [x.tolist() for x in replicator.gather(step())] == [[[1, 5]], [[1, 2]]]
    assert [x.tolist() for x in replicator.gather(step())] == [[[0, 4]], [[3, 4]]]


def test_shapes_are_kept():
    shapes = []
    replicator = rr.SingleDeviceReplicator()
    data = tf.data.Dataset.from_tensor_slices(np.zeros([8, 3], np.float32))
    inputs = replicator.make_inputs(lambda context: data.batch(4, drop_remainder=True))
    replicator.replicate(lambda x: shapes.append(x.shape.as_list()), inputs)
    assert shapes == [[4, 3]]


def test_context():
    context = rr.InputContext(num_replicas=4)
    assert (context.num_replicas_in_sync, context.input_pipeline_id) == (4, 0)
    assert context.num_input_pipelines == 1
    assert context.per_replica_batch_size(256) == 64
