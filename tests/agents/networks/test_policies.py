"""The means that keep a deterministic policy away from its action limits."""

import numpy as np
import tensorflow as tf

from agents.networks.actor_critic import inverting_tanh, preactivation_penalty


def test_a_policy_far_beyond_a_limit_comes_back():
    x = tf.constant([-20.0, -1.0, 0.0, 1.0, 20.0])

    def gradient(wish):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = inverting_tanh(x)
        np.testing.assert_allclose(y, np.tanh(x), rtol=1e-6)
        return tape.gradient(y, x, output_gradients=wish * tf.ones_like(x)).numpy()

    room_below = np.tanh(x) + 1  # Descending a positive gradient lowers y.
    np.testing.assert_allclose(gradient(0.5), 0.5 * room_below, atol=1e-6)
    np.testing.assert_allclose(gradient(-0.5), -0.5 * room_below[::-1], atol=1e-6)


def test_only_the_excess_of_inputs_of_tanh_is_penalised():
    x = tf.constant([[-3.0, 1.0, 2.5], [0.5, -2.0, 1.9]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        penalty = preactivation_penalty(x, 0.1)
    np.testing.assert_allclose(penalty, 0.1 / 2 * (1.0 + 0.25) / 2, rtol=1e-6)
    expected = [[-0.05, 0.0, 0.025], [0.0, 0.0, 0.0]]  # weight * excess / batch, away from 0
    np.testing.assert_allclose(tape.gradient(penalty, x), expected, atol=1e-8)
