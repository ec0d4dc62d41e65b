"""Spectral norm against NumPy: the iterations, and the gradient by finite differences."""

import numpy as np
import pytest
import tensorflow as tf

from rl_replicator.learners.sngan.spectral_norm import SpectralNorm

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


def make():
    norm = SpectralNorm()
    norm(tf.constant(W), is_training=False)
    assert not norm.u.trainable
    norm.u.assign(unit(U))
    return norm


def test_training_iterates_and_other_passes_do_not():
    norm, u = make(), unit(U)
    for _ in range(3):
        matrix = W.reshape(-1, 4)
        got = norm(tf.constant(W), is_training=False)
        np.testing.assert_allclose(got, normalized(W, unit(matrix @ u), u), rtol=1e-10)
        np.testing.assert_allclose(norm.u.numpy(), u, rtol=1e-10)
        v, u = iterate(W, u)
        got = norm(tf.constant(W), is_training=True)
        np.testing.assert_allclose(got, normalized(W, v, u), rtol=1e-10)
        np.testing.assert_allclose(norm.u.numpy(), u, rtol=1e-10)


@pytest.mark.parametrize("is_training", [True, False])
def test_the_gradient_passes_through_the_norm_but_not_the_vectors(is_training):
    norm = make()
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
