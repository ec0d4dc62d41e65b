"""The gradients of a squashing function that never vanish on the way back."""

import numpy as np
import tensorflow as tf

from agents.networks.policies import inverting_tanh


def test_a_policy_far_beyond_a_limit_comes_back():
    x = tf.constant([-20.0, -1.0, 0.0, 1.0, 20.0])

    def gradient(wish):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = inverting_tanh(x)
        np.testing.assert_allclose(y, np.tanh(x), rtol=1e-6)
        return tape.gradient(y, x, output_gradients=wish * tf.ones_like(x)).numpy()

    room_below = np.tanh(x) + 1  # A positive gradient is descended: y becomes less.
    np.testing.assert_allclose(gradient(0.5), 0.5 * room_below, atol=1e-6)
    np.testing.assert_allclose(gradient(-0.5), -0.5 * room_below[::-1], atol=1e-6)
