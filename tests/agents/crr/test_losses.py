"""CRR's density, samples, advantages and weights, against NumPy and numbers worked by hand."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from agents.crr import losses
from agents.crr.networks import Mixture, most_probable

LOGITS = np.log(np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]], np.float32))
MEAN = np.array(
    [[[0.1, -0.9], [0.5, 0.0], [-0.5, 0.7]], [[0.0, 0.0], [1.0, -1.0], [-0.2, 0.2]]], np.float32
)
STDDEV = np.array(
    [[[0.1, 0.3], [0.2, 0.4], [0.5, 0.2]], [[0.3, 0.3], [0.1, 0.2], [0.6, 0.4]]], np.float32
)


def test_the_density_is_that_of_a_mixture():
    action = np.array([[0.3, -0.2], [-0.4, 0.4]], np.float32)
    expected = [
        np.log(
            sum(
                np.exp(LOGITS[row, i])
                * stats.multivariate_normal(MEAN[row, i], np.diag(STDDEV[row, i] ** 2)).pdf(
                    action[row]
                )
                for i in range(3)
            )
        )
        for row in range(2)
    ]
    # Logits need not be normalised.
    found = losses.log_density(LOGITS + 5.0, MEAN, STDDEV, action)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_samples_are_those_of_the_mixture():
    count = 40_000
    noise = np.random.default_rng(0).standard_normal((count, 2), np.float32)
    mixture = [np.repeat(x, count, 0) for x in (LOGITS[:1], MEAN[:1, :, :1], STDDEV[:1, :, :1])]
    found = losses.sample(*mixture, noise).numpy()[:, 0]

    def cumulative(x):
        inside = sum(
            np.exp(LOGITS[0, i]) * stats.norm.cdf(x, MEAN[0, i, 0], STDDEV[0, i, 0])
            for i in range(3)
        )
        return np.where(x >= 1, 1.0, inside)  # Clipped.

    for x in (-0.999, -0.6, -0.1, 0.1, 0.2, 0.5, 0.8):
        assert np.mean(found <= x) == pytest.approx(cumulative(x), abs=0.01)
    assert found.min() >= -1.0 and found.max() <= 1.0
    assert (np.mean(found == -1.0)) == pytest.approx(cumulative(-1.0), abs=0.01)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("binary", [0, 0, 1, 1, 1]),
        ("exp", [np.exp(-1), 1, np.exp(0.5), 20, 20]),
        ("none", [1, 1, 1, 1, 1]),
    ],
)
def test_weights(weighting, expected):
    """beta is 2, and the greatest weight 20; exp(1000 / 2) is infinite in float32."""
    advantages = tf.constant([-2.0, 0.0, 1.0, 7.0, 1000.0])
    found = losses.WEIGHTINGS[weighting](advantages, 2.0, 20.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_greedy_action_is_the_mean_of_the_most_probable_component():
    found = most_probable(Mixture(*map(tf.constant, (LOGITS, MEAN, STDDEV))))
    np.testing.assert_allclose(found, [[0.5, 0.0], [0.0, 0.0]])
