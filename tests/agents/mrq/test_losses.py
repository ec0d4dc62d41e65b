"""MR.Q's two-hot rewards, samples, targets and priorities, against numbers worked by hand."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from agents.mrq import losses
from agents.mrq.actions import ContinuousVectors, OneHotVectors
from agents.mrq.networks import LatentPrediction


def test_rewards_are_divided_between_their_two_bins():
    """Five bins: 0, +-(e^5 - 1) and +-(e^10 - 1)."""
    low, high = np.expm1(5.0), np.expm1(10.0)
    values = np.array([[0.0, low], [low / 4, -high], [-(low + high) / 2, 1e30]], np.float32)
    expected = np.zeros((3, 2, 5))
    expected[0, 0, 2] = expected[0, 1, 3] = 1
    expected[1, 0, 2:4] = 0.75, 0.25
    expected[1, 1, 0] = 1
    expected[2, 0, :2] = 0.5
    expected[2, 1, 4] = 1
    np.testing.assert_allclose(losses.two_hot(values, 5), expected, atol=1e-5)


def test_many_bins_keep_the_mean():
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    bins = np.sign(x := np.linspace(-10, 10, 65)) * np.expm1(np.abs(x))
    np.testing.assert_allclose(losses.two_hot(values, 65).numpy() @ bins, values, atol=1e-3)


def test_steps_after_the_end_do_not_count_and_targets_have_no_gradient():
    features = tf.Variable([[[1.0, 3.0], [9.0, 9.0]]])
    predicted = LatentPrediction(
        tf.zeros([1, 2, 2]), tf.zeros([1, 2, 5]), tf.constant([[0.5, 7.0]])
    )
    with tf.GradientTape() as tape:
        errors = losses.model_losses(
            predicted, features, tf.zeros([1, 2]), tf.ones([1, 2]), tf.constant([[1.0, 0.0]])
        )
        total = tf.add_n(list(errors.values()))
    assert {name: float(error) for name, error in errors.items()} == pytest.approx(
        {"dynamics": (1 + 9) / 2, "reward": np.log(5), "end": 0.25}
    )
    assert tape.gradient(total, features) is None


def test_samples_have_the_probabilities_of_the_logits():
    count, probabilities = 40_000, np.array([0.1, 0.6, 0.3])
    noise = np.random.default_rng(0).standard_normal((count, 4), np.float32)
    logits = np.append(np.log(probabilities), -np.inf).astype(np.float32)
    soft = losses.gumbel_softmax(np.tile(logits, (count, 1)), noise, 10.0).numpy()
    np.testing.assert_allclose(soft.sum(-1), 1.0, rtol=1e-5)
    assert (soft[:, 3] == 0).all()
    shares = np.bincount(soft.argmax(-1), minlength=4) / count
    np.testing.assert_allclose(shares, [*probabilities, 0], atol=0.01)
    gumbel = stats.gumbel_r.ppf(stats.norm.cdf(noise[:5, :3].astype(np.float64)))
    expected = np.exp((logits[:3] + gumbel) / 10)
    np.testing.assert_allclose(soft[:5, :3], expected / expected.sum(-1, keepdims=True), rtol=1e-4)
    extreme = np.full((1, 4), 40.0, np.float32)
    assert np.isfinite(losses.gumbel_softmax(logits[None], extreme, 1.0)).all()


def test_actions_with_noise_stay_legal():
    smoothed = tf.constant([[1.4, -2.0, 0.5]])
    np.testing.assert_array_equal(ContinuousVectors().nearest(smoothed, None), [[1.0, -1.0, 0.5]])
    vectors = OneHotVectors(3, temperature=10.0)
    np.testing.assert_array_equal(vectors.nearest(smoothed, None), [[1, 0, 0]])
    np.testing.assert_array_equal(
        vectors.nearest(smoothed, tf.constant([[0.0, 1.0, 1.0]])), [[0, 0, 1]]
    )
