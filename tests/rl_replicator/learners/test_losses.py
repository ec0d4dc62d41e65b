"""Loss and counts against numbers worked out by hand."""

import math

import numpy as np
import tensorflow as tf

from rl_replicator.learners.resnet import losses

# Probabilities 1/2, 1/4, 1/4.
LOGITS = np.log(np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], np.float32))


def test_cross_entropy():
    got = losses.smoothed_cross_entropy(tf.constant([0, 2]), LOGITS)
    np.testing.assert_allclose(got, [math.log(2), math.log(4)], rtol=1e-6)


def test_label_smoothing():
    # q = (0.8, 0.1, 0.1): 0.8 log 2 + 0.2 log 4 = 1.2 log 2; then 0.1 (log 4 + log 2) + 0.8 log 4.
    got = losses.smoothed_cross_entropy(tf.constant([0, 2]), LOGITS, smoothing=0.3)
    np.testing.assert_allclose(got, [1.2 * math.log(2), 1.9 * math.log(2)], rtol=1e-6)


def test_in_top():
    logits = tf.constant([[1.0, 4.0, 3.0, 2.0]] * 4)
    labels = tf.constant([0, 1, 2, 3])
    for k, want in ((1, [0, 1, 0, 0]), (2, [0, 1, 1, 0]), (3, [0, 1, 1, 1]), (5, [1, 1, 1, 1])):
        np.testing.assert_array_equal(losses.in_top(k, labels, logits), want)


def test_ties_and_nan_count_against_the_classifier():
    logits = tf.constant([[1.0, 1.0, 0.0], [np.nan, 1.0, 2.0], [np.nan] * 3])
    labels = tf.constant([0, 2, 1])
    np.testing.assert_array_equal(losses.in_top(1, labels, logits), [0, 0, 0])
    np.testing.assert_array_equal(losses.in_top(2, labels, logits), [1, 1, 0])
