"""TpuReplicator without a TPU: the graph of a step, and the same step compiled by XLA on a CPU."""

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


def make_learner(replicator):
    """Returns an MLP with cross-replica batch normalisation, and its step function."""
    with replicator.scope():
        layers = [
            # Batch norm cancels a bias, so its gradient is noise, which Adam would amplify.
            snt.Linear(16, with_bias=False, name="first"),
            snt.distribute.CrossReplicaBatchNorm(
                True, True, snt.ExponentialMovingAverage(0.9), snt.ExponentialMovingAverage(0.9)
            ),
            snt.Linear(1, name="last"),
        ]
        optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(1e-2), max_global_norm=1.0)
        layers[0](tf.zeros([1, FEATURES]))
        layers[2](tf.zeros([1, 16]))
    model = snt.Sequential(layers)
    rng = np.random.default_rng(1)
    for variable in (*layers[0].trainable_variables, *layers[2].trainable_variables):
        variable.assign(rng.normal(size=variable.shape).astype(np.float32))

    def step_fn(x):
        with tf.GradientTape() as tape:
            hidden = tf.tanh(layers[1](layers[0](x), is_training=True))
            loss = tf.reduce_mean(tf.square(layers[2](hidden)[:, 0] - tf.reduce_sum(x, axis=1)))
        parameters = model.trainable_variables
        optimizer.apply(tape.gradient(loss, parameters), parameters)
        return {"loss": loss, "nothing": None}

    return model, step_fn


def test_one_trace_serves_all_cores(replicator):
    traces = []
    _, step_fn = make_learner(replicator)

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


def test_xla_computes_what_the_plain_step_computes():
    # 10 steps in float32; XLA computes sums in another order.
    weights = []
    for is_compiled in (False, True):
        single = rr.SingleDeviceReplicator()
        model, step_fn = make_learner(single)
        function = tf.function(step_fn, jit_compile=is_compiled)
        losses = [function(x)["loss"].numpy() for x in batches(rr.InputContext(1)).take(10)]
        weights.append([*losses, *(v.numpy() for v in model.trainable_variables)])
    for plain, compiled in zip(*weights, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=1e-5)


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
