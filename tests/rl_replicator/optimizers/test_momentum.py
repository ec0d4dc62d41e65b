"""Corners of momentum and LARS; test_references.py compares their steps with NumPy."""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.learners.resnet import networks
from rl_replicator.optimizers import momentum


def rate(step):
    return 0.1 / (1.0 + tf.cast(step, tf.float32))  # 0.1, 0.05, ...


def test_lars_with_float16_parameters_of_a_large_norm():
    w = tf.Variable(tf.ones([300, 300], tf.float16))  # |w| = 300
    optimizer = momentum.LARS(rate, networks.decayed, weight_decay=1e-4)
    optimizer.apply([tf.fill([300, 300], tf.constant(0.01, tf.float16))], [w])  # |g| = 3
    # ratio = 0.001 * 300 / (3 + 0.03) = 0.099; v = 0.1 * 0.099 (0.01 + 0.0001).
    np.testing.assert_allclose(optimizer.scaled_velocities[0], np.full([300, 300], 1e-4), rtol=1e-2)


@pytest.mark.parametrize(("weight", "gradient"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_trust_ratio_of_nothing(weight, gradient):
    ratio = momentum.trust_ratio(tf.constant(weight), tf.constant(gradient), 0.0, 0.001)
    assert float(ratio) == 1.0


def test_defaults_are_a_momentum_of_nine_tenths_and_no_decay():
    plain, lars = (kind(rate, networks.decayed) for kind in (momentum.Momentum, momentum.LARS))
    for optimizer in (plain, lars):
        w = tf.Variable([[0.0, 2.0]])
        for _ in range(2):
            optimizer.apply([tf.constant([[1.0, 0.0]])], [w])
    np.testing.assert_allclose(plain.velocities[0], [[0.9 + 1.0, 0.0]], rtol=1e-6)
    # The ratios are 0.001 * 2, because |w| is 2 in both steps.
    np.testing.assert_allclose(
        lars.scaled_velocities[0], [[0.9 * 2e-4 + 0.05 * 2e-3, 0.0]], rtol=1e-6
    )


@pytest.mark.parametrize("kind", [momentum.Momentum, momentum.LARS])
def test_sparse_rows_and_plain_numbers_are_gradients_too(kind):
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([2, 0, 2]), [3, 1])
    numbers = [[2.0], [0.0], [5.0]]
    moved = []
    for g in (tf.constant(numbers), rows, numbers):
        w, optimizer = tf.Variable(tf.ones([3, 1])), kind(rate, networks.decayed, weight_decay=0.1)
        for _ in range(2):  # All rows move in the second step, by their velocity and decay.
            optimizer.apply([g], [w])
        moved.append(w.numpy())
    np.testing.assert_allclose(moved[1:], [moved[0]] * 2, rtol=1e-6)


def test_a_checkpoint_of_one_is_none_of_the_other(tmp_path):
    """The velocities of LARS include the learning rate."""
    plain, lars = (kind(rate, networks.decayed) for kind in (momentum.Momentum, momentum.LARS))
    for optimizer in (plain, lars):
        optimizer.apply([tf.constant([[1.0]])], [tf.Variable([[1.0]])])
    for saved, restored in ((plain, lars), (lars, plain)):
        rr.parts.TrackablePart(optimizer=saved).save(tmp_path)
        with pytest.raises(rr.CheckpointError, match="velocities/0'"):
            rr.parts.TrackablePart(optimizer=restored).restore(tmp_path)


def test_lars_without_decay_on_a_split_weight():
    replicator = rr.MeshReplicator({"model": 2}, {r"split": ("none", "model")})
    w = np.array([[3.0, 4.0]], np.float32)  # |w| = 5
    with replicator.scope():
        split = tf.Variable(w, name="split")
        optimizer = replicator.wrap_optimizer(
            momentum.LARS(lambda step: tf.constant(0.1), networks.decayed, trust=0.01)
        )
    replicator.build_optimizer(optimizer, [split])

    def step_fn(x):
        optimizer.apply([tf.constant([[0.0, 2.0]])], [split])
        return x

    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.from_tensors(1.0))
    replicator.replicate(step_fn, inputs)()
    ratio = 0.01 * 5 / 2
    np.testing.assert_allclose(split, w - 0.1 * ratio * np.array([[0.0, 2.0]]), rtol=1e-6)
