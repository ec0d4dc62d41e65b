"""Evaluation over finite data: every example counts exactly once."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr

NAMES = ("single_device", "multi_device:4")


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
            "phase": tf.reduce_sum(tf.complex(mask, 2 * mask)),
            "nothing": (None, mask[0] * 0.0),
        }

    evaluate = replicator.make_evaluation(sums_fn, input_fn, global_batch_size=16)
    for _ in range(2):
        totals = evaluate()
        assert totals["examples"] == 103
        assert totals["positive"] == (x @ weights > 0).sum()
        np.testing.assert_allclose(totals["sum"], (x @ weights).sum(), rtol=1e-5)
        assert totals["phase"] == 103 + 206j
        assert totals["nothing"] == (None, 0.0)


def endless(context):
    return tf.data.Dataset.range(4).repeat().batch(2)


def finite(context):
    return tf.data.Dataset.range(4).batch(2)


@pytest.mark.parametrize(
    ("input_fn", "of_mask", "message"),
    [
        (lambda _: finite(_).take(0), lambda x: x, "expected data to evaluate on, got none"),
        (endless, lambda x: x, r"an endless dataset from .*endless; leave repeat\(\)"),
        (finite, lambda x: {1}, r"tuples from sums_fn, got a set at \['n'\]"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(input_fn, of_mask, message):
    with pytest.raises(rr.ConfigError, match=message):
        rr.SingleDeviceReplicator().make_evaluation(
            lambda batch, mask: {"n": of_mask(mask[0])}, input_fn, 2
        )()


def test_an_interrupted_evaluation_begins_anew():
    replicator = rr.make("multi_device:2")
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
    evaluate.cancel()  # Before it begins, which restarts its input.
    with pytest.raises(rr.StepCancelled):
        evaluate()
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
