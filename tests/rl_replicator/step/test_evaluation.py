"""Evaluation over finite data: every example counts exactly once."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr

NAMES = ("single_device", "multi_device:2", "multi_device:4")


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_counts_every_example_once(name):
    replicator = rr.make(name)
    x = np.random.default_rng(0).normal(size=(103, 3)).astype(np.float32)
    weights = np.array([1.0, -1.0, 0.5], np.float32)

    def input_fn(context):
        data = context.shard(tf.data.Dataset.from_tensor_slices(x))
        return data.batch(context.per_replica_batch_size(16))

    def sums_fn(batch, mask):
        values = tf.linalg.matvec(batch, tf.constant(weights))
        return {
            "examples": tf.cast(tf.reduce_sum(mask), tf.int32),
            "positive": tf.reduce_sum(tf.cast(values > 0, tf.int32) * tf.cast(mask, tf.int32)),
            "sum": tf.reduce_sum(values * mask),
        }

    evaluate = replicator.make_evaluation(sums_fn, input_fn, global_batch_size=16)
    for _ in range(2):
        totals = evaluate()
        assert totals["examples"] == 103
        assert totals["positive"] == (x @ weights > 0).sum()
        np.testing.assert_allclose(totals["sum"], (x @ weights).sum(), rtol=1e-5)


def test_evaluation_of_nothing():
    empty = tf.data.Dataset.range(0).batch(2)
    evaluate = rr.SingleDeviceReplicator().make_evaluation(
        lambda batch, mask: tf.reduce_sum(mask), lambda context: empty, 2
    )
    with pytest.raises(rr.ConfigError, match="expected data to evaluate on, got none"):
        evaluate()


@pytest.mark.parametrize("name", NAMES)
def test_none_among_the_sums_stays_none(name):
    replicator = rr.make(name)
    evaluate = replicator.make_evaluation(
        lambda batch, mask: {"n": tf.reduce_sum(mask), "no": None, "all": (None, mask[0])},
        lambda context: tf.data.Dataset.range(12).batch(context.per_replica_batch_size(4)),
        4,
    )
    rows = 12 // 4
    assert evaluate() == {"n": 12, "no": None, "all": (None, rows * replicator.num_replicas)}


def test_endless_data_is_refused():
    """An evaluation of it would never return."""

    def train(context):
        return tf.data.Dataset.range(4).repeat().batch(2)

    with pytest.raises(rr.ConfigError, match=r"an endless dataset from .*train; leave repeat\(\)"):
        rr.SingleDeviceReplicator().make_evaluation(
            lambda batch, mask: tf.reduce_sum(mask), train, 2
        )


def test_complex_sums_are_refused():
    """Totals are accumulated in float64, which would drop the imaginary part."""
    with pytest.raises(rr.ConfigError, match="expected sums_fn to return real sums, got complex64"):
        rr.SingleDeviceReplicator().make_evaluation(
            lambda batch, mask: {"n": tf.reduce_sum(mask), "sum": tf.complex(mask[0], 1.0)},
            lambda _: tf.data.Dataset.range(4).batch(2),
            2,
        )


@pytest.mark.parametrize("name", ["single_device", "multi_device:2"])
def test_an_interrupted_evaluation_begins_anew(name):
    replicator = rr.make(name)
    reached, go_on = threading.Event(), threading.Event()

    def numbers():
        for i in range(100):
            if i == 40 and not go_on.is_set():
                reached.set()
                go_on.wait(60)
            yield [i]

    def input_fn(context):
        return tf.data.Dataset.from_generator(
            numbers, output_signature=tf.TensorSpec([1], tf.int64)
        )

    def sums_fn(batch, mask):
        return {"sum": tf.reduce_sum(tf.cast(batch, tf.float32) * mask), "n": tf.reduce_sum(mask)}

    evaluate = replicator.make_evaluation(sums_fn, input_fn, replicator.num_replicas)

    def cancel_when_it_waits():
        reached.wait(60)
        evaluate.cancel()

    threading.Thread(target=cancel_when_it_waits, daemon=True).start()
    with pytest.raises(rr.StepCancelled):
        evaluate()
    go_on.set()
    for _ in range(2):
        assert evaluate() == {"n": 100, "sum": 99 * 100 / 2}


def test_a_pass_that_lost_a_step_is_refused(monkeypatch):
    replicator = rr.SingleDeviceReplicator()
    evaluate = replicator.make_evaluation(
        lambda batch, mask: tf.reduce_sum(mask), lambda _: tf.data.Dataset.range(5).batch(2), 2
    )
    assert evaluate() == 5
    # As if a worker had read two rows and died before it returned the sums of the second.
    monkeypatch.setattr(type(evaluate._inputs), "position", 4)
    with pytest.raises(rr.WorkerLost, match="a worker was lost during the evaluation; evaluate ag"):
        evaluate()
