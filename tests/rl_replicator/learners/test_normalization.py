"""The classifier's two batch norms, by hand and on replicas."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.learners.resnet.normalization import BatchNorm, cross_replica_batch_norm


# The fused kernel's moving variance is unbiased (n - 1), as in Algorithm 2 of the paper.
@pytest.mark.parametrize(("kind", "extra"), [(BatchNorm, 8 / 7), (cross_replica_batch_norm, 1.0)])
def test_batch_norm_by_hand(kind, extra):
    norm = kind("norm", snt.initializers.Constant(2.0))
    x = np.random.default_rng(0).normal(size=(2, 2, 2, 3)).astype(np.float32)
    x *= np.array([1.0, 3.0, 1e-3], np.float32)  # Epsilon matters in the last channel.
    mean, variance = np.zeros(3), np.ones(3)
    norm(x[:1], is_training=False)
    assert [v.name.split("/")[-1] for v in norm.trainable_variables] == ["offset:0", "scale:0"]
    norm.offset.assign([0.5, 0.0, -1.0])
    for _ in range(3):
        y = norm(x, is_training=True)
        own = x.mean((0, 1, 2)), x.var((0, 1, 2))
        mean, variance = 0.9 * mean + 0.1 * own[0], 0.9 * variance + 0.1 * extra * own[1]
        np.testing.assert_allclose(y, by_hand(x, *own), 1e-3, 1e-3)
        np.testing.assert_allclose(
            norm(x, is_training=False), by_hand(x, mean, variance), 1e-4, 1e-4
        )


def by_hand(x, mean, variance):
    return 2.0 * (x - mean) / np.sqrt(variance + 1e-5) + np.array([0.5, 0.0, -1.0])


def test_statistics_of_all_replicas():
    replicator = rr.make("multi_device:2")
    rows = np.array([[1.0, 3.0], [5.0, 7.0]], np.float32).reshape(2, 2, 1, 1, 1)
    with replicator.scope():
        norm = cross_replica_batch_norm("norm", snt.initializers.Ones())
        norm(tf.zeros([1, 1, 1, 1]), is_training=False)
    inputs = replicator.make_inputs(
        lambda context: tf.data.Dataset.from_tensor_slices(rows).repeat()
    )
    step = replicator.replicate(lambda x: norm(x, is_training=True), inputs)
    got = np.ravel(replicator.gather(step()))
    np.testing.assert_allclose(got, np.array([-3, -1, 1, 3]) / 5**0.5, rtol=1e-4)


def test_statistics_of_one_replica_and_moving_ones_of_all():
    replicator = rr.make("multi_device:2")
    rows = np.array([[1.0, 3.0], [5.0, 9.0]], np.float32).reshape(2, 2, 1, 1, 1)
    with replicator.scope():
        norm = BatchNorm("norm", snt.initializers.Ones())
        norm(tf.zeros([1, 1, 1, 1]), is_training=False)
    inputs = replicator.make_inputs(
        lambda context: tf.data.Dataset.from_tensor_slices(rows).repeat()
    )
    step = replicator.replicate(lambda x: norm(x, is_training=True), inputs)
    np.testing.assert_allclose(np.ravel(replicator.gather(step())), [-1, 1, -1, 1], rtol=1e-4)
    # A tenth of the means 2 and 7, averaged.
    np.testing.assert_allclose(
        [copy.numpy() for copy in norm.moving_mean.values], [[0.45], [0.45]], rtol=1e-6
    )
