"""TpuReplicator without a TPU: the graph of a step; test_equality.py compiles one by XLA."""

import socket
import time

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from tests.conformance.fake_tpu import CORES, FakeTPU, operations

BATCH = 8
FEATURES = 5
DATA = np.random.default_rng(0).normal(size=(64, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def replicator():
    return rr.TpuReplicator(resolver=FakeTPU())


def batches(context):
    return tf.data.Dataset.from_tensor_slices(DATA).batch(BATCH, drop_remainder=True).repeat()


def make_step_fn(replicator):
    """Returns the step function of an MLP with cross-replica batch normalisation."""
    with replicator.scope():
        norm = snt.distribute.CrossReplicaBatchNorm(
            True, True, snt.ExponentialMovingAverage(0.9), snt.ExponentialMovingAverage(0.9)
        )
        first, last = snt.Linear(16, with_bias=False), snt.Linear(1)
        optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(1e-2), max_global_norm=1.0)
        last(first(tf.zeros([1, FEATURES])))

    def step_fn(x):
        with tf.GradientTape() as tape:
            hidden = tf.tanh(norm(first(x), is_training=True))
            loss = tf.reduce_mean(tf.square(last(hidden)[:, 0] - tf.reduce_sum(x, axis=1)))
        parameters = [
            variable for layer in (first, norm, last) for variable in layer.trainable_variables
        ]
        optimizer.apply(tape.gradient(loss, parameters), parameters)
        return {"loss": loss, "nothing": None}

    return step_fn


def test_one_trace_serves_all_cores(replicator):
    traces = []
    step_fn = make_step_fn(replicator)

    def counted(x):
        traces.append(tuple(x.shape))
        return step_fn(x)

    step = replicator.replicate(counted, replicator.make_inputs(batches), 3)
    assert (replicator.num_replicas, replicator.num_local_replicas) == (CORES, CORES)
    assert isinstance(replicator.strategy, tf.distribute.TPUStrategy)
    assert len(traces) <= 2 and set(traces) == {(BATCH, FEATURES)}  # Twice if it creates slots.
    found = operations(step)
    assert found["TPUReplicateMetadata"] == 1
    assert found["CrossReplicaSum"] >= 4  # For batch statistics, their gradients, the weights'.
    assert found["MatMul"] == 5  # As on one device: two forward, three backward.
    assert found["While"] == 1


def test_moving_statistics_are_averaged_over_the_cores_and_restored(replicator):
    """Only those that the step updates, after the step; a skipped step restores the old values."""
    with replicator.scope():
        updated, fixed = (tf.keras.layers.BatchNormalization() for _ in range(2))
        optimizer = replicator.wrap_optimizer(snt.optimizers.SGD(0.1), skip_nonfinite=True)
        for layer in (updated, fixed):
            layer.build((None, FEATURES))

    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(updated(fixed(x, training=False), training=True)))
        parameters = updated.trainable_variables
        optimizer.apply(tape.gradient(loss, parameters), parameters)

    found = operations(replicator.replicate(step_fn, replicator.make_inputs(batches)))
    assert found["CrossReplicaSum"] == 4  # Two gradients, the mean and the variance.
    assert found["AssignVariableOp"] == 4  # Mean and variance are restored, and then averaged.


def test_callable_inputs(replicator):
    inputs = replicator.make_inputs(lambda context: lambda: tf.random.normal([2]))
    assert operations(replicator.replicate(lambda x: x, inputs))["RandomStandardNormal"] == 1
    inputs = replicator.make_inputs(lambda context: lambda: tf.zeros([2]), per_replica=True)
    with pytest.raises(rr.ConfigError, match="one callable input for all replicas of a TPU"):
        replicator.replicate(lambda x: x, inputs)


def test_misuse(replicator):
    outside = tf.Variable([1.0], name="from_outside")
    inputs = replicator.make_inputs(batches)
    with pytest.raises(rr.ConfigError, match="'from_outside:0'"):
        replicator.replicate(lambda x: outside.assign_add([1.0]), inputs)
    with rr.make("multi_device:2").scope():
        other = tf.Variable(1.0)
    handle = other.values[0].handle
    with pytest.raises(rr.ConfigError, match="from outside"):
        replicator.replicate(
            lambda x: tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32), inputs
        )


def test_without_a_tpu_there_is_one_line(monkeypatch):
    monkeypatch.delenv("TPU_NAME", raising=False)
    with pytest.raises(rr.ConfigError, match="^expected a TPU at 'local', found none") as error:
        rr.make("tpu")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("listens", [True, False])
def test_an_address_without_a_tpu_ends_at_the_deadline(listens):
    with socket.create_server(("localhost", 0)) as server:
        address = f"grpc://localhost:{server.getsockname()[1]}"
        if not listens:
            server.close()
        start = time.monotonic()
        with pytest.raises(rr.ConfigError, match=r"no answer in 2 s"):
            rr.TpuReplicator(address, deadline=2.0)
    assert time.monotonic() - start < 60
