"""Importance weights by hand."""

import numpy as np
import tensorflow as tf

from agents.learning.losses import importance_exponent, importance_weights, normalized_weights
from agents.replay.config import ReplayConfig
from agents.replay.transitions import Sample


def test_importance_weights_by_hand():
    # Priorities 1, 1, 2 with alpha 1: P = 1/4, 1/4, 1/2; N P = 3/4, 3/4, 3/2.
    probabilities = tf.constant([0.25, 0.25, 0.5], tf.float64)
    size = tf.constant([3, 3, 3], tf.int64)
    full = importance_weights(probabilities, size, 1.0)
    np.testing.assert_allclose(full, [4 / 3, 4 / 3, 2 / 3], rtol=1e-6)
    half = importance_weights(probabilities, size, 0.5)
    np.testing.assert_allclose(half, np.sqrt([4 / 3, 4 / 3, 2 / 3]), rtol=1e-6)
    none = importance_weights(probabilities, size, 0.0)
    np.testing.assert_allclose(none, [1, 1, 1])


def test_the_exponent_grows_linearly_to_its_end():
    config = ReplayConfig(
        priority_exponent=0.6, importance_exponent_start=0.4, importance_exponent_end=1.0
    )
    values = [importance_exponent(config, tf.constant(step), 100) for step in (0, 50, 100, 500)]
    np.testing.assert_allclose(values, [0.4, 0.7, 1.0, 1.0], rtol=1e-6)


def test_weights_are_divided_by_the_largest_and_are_one_for_uniform_sampling():
    sample = Sample(
        keys=tf.constant([1, 2], tf.uint64),
        probabilities=tf.constant([0.25, 0.5], tf.float64),
        table_size=tf.constant([3, 3], tf.int64),
        transition=None,
    )
    prioritized = ReplayConfig(priority_exponent=0.6, importance_exponent_start=1.0)
    weights = normalized_weights(sample, prioritized, tf.constant(0), 10)
    np.testing.assert_allclose(weights, [1.0, 0.5], rtol=1e-6)
    uniform = ReplayConfig()
    np.testing.assert_array_equal(normalized_weights(sample, uniform, tf.constant(0), 10), [1, 1])
