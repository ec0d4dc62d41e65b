"""Batch norms by hand and on replicas; spectral norm against NumPy."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.learners.normalization import BatchNorm, SpectralNorm, cross_replica_batch_norm


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


@pytest.mark.parametrize(
    ("kind", "last", "want"),
    [
        (cross_replica_batch_norm, 7.0, np.array([-3, -1, 1, 3]) / 5**0.5),
        (BatchNorm, 9.0, [-1, 1, -1, 1]),
    ],
)
def test_statistics_of_replicas(kind, last, want):
    replicator = rr.make("multi_device:2")
    rows = np.array([[1.0, 3.0], [5.0, last]], np.float32).reshape(2, 2, 1, 1, 1)
    with replicator.scope():
        norm = kind("norm", snt.initializers.Ones())
        norm(tf.zeros([1, 1, 1, 1]), is_training=False)
    inputs = replicator.make_inputs(
        lambda context: tf.data.Dataset.from_tensor_slices(rows).repeat()
    )
    step = replicator.replicate(lambda x: norm(x, is_training=True), inputs)
    np.testing.assert_allclose(np.ravel(replicator.gather(step())), want, rtol=1e-4)
    if kind is BatchNorm:  # A tenth of the means 2 and 7, averaged.
        moving = [copy.numpy() for copy in norm.moving_mean.values]
        np.testing.assert_allclose(moving, [[0.45], [0.45]], rtol=1e-6)


SHAPE = (2, 3, 4)
RNG = np.random.default_rng(0)
W = RNG.normal(size=SHAPE)
U = RNG.normal(size=4)
COEFFICIENTS = RNG.normal(size=SHAPE)


def unit(x):
    return x / np.sqrt(np.sum(x * x))


def iterate(w, u):
    """Miyato et al. 2018, Algorithm 1: the vectors after one iteration."""
    matrix = w.reshape(-1, w.shape[-1])
    v = unit(matrix @ u)
    return v, unit(matrix.T @ v)


def normalized(w, v, u):
    return w / (v @ w.reshape(-1, w.shape[-1]) @ u)


def spectral_norm():
    norm = SpectralNorm()
    norm(tf.constant(W), is_training=False)
    assert not norm.u.trainable
    norm.u.assign(unit(U))
    return norm


def test_training_iterates_and_other_passes_do_not():
    norm, u = spectral_norm(), unit(U)
    for _ in range(3):
        got = norm(tf.constant(W), is_training=False)
        np.testing.assert_allclose(got, normalized(W, unit(W.reshape(-1, 4) @ u), u), rtol=1e-10)
        np.testing.assert_allclose(norm.u.numpy(), u, rtol=1e-10)
        v, u = iterate(W, u)
        got = norm(tf.constant(W), is_training=True)
        np.testing.assert_allclose(got, normalized(W, v, u), rtol=1e-10)
        np.testing.assert_allclose(norm.u.numpy(), u, rtol=1e-10)
    for _ in range(300):
        got = norm(tf.constant(W), is_training=True)
    largest = np.linalg.svd(W.reshape(-1, 4), compute_uv=False)[0]
    np.testing.assert_allclose(got, W / largest, rtol=1e-9)


@pytest.mark.parametrize("is_training", [True, False])
def test_the_gradient_passes_through_the_norm_but_not_the_vectors(is_training):
    norm = spectral_norm()
    w = tf.constant(W)
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.reduce_sum(COEFFICIENTS * norm(w, is_training=is_training) ** 2)
    v, u = iterate(W, unit(U))
    u = u if is_training else unit(U)
    numeric = np.zeros(SHAPE)
    for index in np.ndindex(SHAPE):
        step = np.zeros(SHAPE)
        step[index] = 1e-6
        high, low = (np.sum(COEFFICIENTS * normalized(x, v, u) ** 2) for x in (W + step, W - step))
        numeric[index] = (high - low) / 2e-6
    np.testing.assert_allclose(tape.gradient(loss, w), numeric, 1e-6, 1e-7)
