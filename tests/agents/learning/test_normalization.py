"""Running normalisation against NumPy's moments of all data seen so far."""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from agents.networks.encoders import RunningNormalization, update_statistics
from tests.agents import actor_critic_reference as reference

SIZE, BATCH, STEPS = 3, reference.BATCH, 5


def make_batches():
    """[STEPS, BATCH, SIZE]: far from zero, drifting, and with one dimension that never changes."""
    random = np.random.default_rng(0)
    scale, mean = np.array([0.5, 40.0, 0.0]), np.array([1000.0, -3.0, 7.0])
    drift = np.linspace(0, 2, STEPS)[:, None, None]
    return (mean + scale * (random.normal(size=(STEPS, BATCH, SIZE)) + drift)).astype(np.float32)


@pytest.mark.parametrize("replicator_name", ["single_device", "multi_device:2"])
def test_the_moments_are_those_of_all_batches(replicator_name):
    replicator = rr.make(replicator_name)
    drawn = make_batches()
    with replicator.scope():
        encoder = RunningNormalization()
        encoder(tf.zeros([1, SIZE]))

    def step_fn(observation):
        encoder.update(observation)
        return encoder(observation)

    input_fn = reference.batches(drawn.reshape(-1, SIZE))
    step = replicator.replicate(step_fn, replicator.make_inputs(input_fn), 1)
    for number in range(1, STEPS + 1):
        outputs = np.concatenate([np.asarray(x)[0] for x in replicator.local_results(step())])
        seen = drawn[:number].reshape(-1, SIZE).astype(np.float64)
        np.testing.assert_allclose(encoder.mean.numpy(), seen.mean(0), rtol=1e-6)
        np.testing.assert_allclose(encoder.variance.numpy(), seen.var(0), rtol=1e-4, atol=1e-9)
        assert encoder.count.numpy() == len(seen)
        expected = (drawn[number - 1] - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-4)
        np.testing.assert_allclose(outputs, expected, rtol=1e-3, atol=2e-3)


def test_what_fills_a_window_does_not_count():
    """Of a replica's three observations, one counts, of the other's two."""
    replicator = rr.make("multi_device:2")
    observations = np.float32([[2.0], [9e3], [-9e3], [4.0], [6.0], [9e3]])
    valid = np.float32([1, 0, 0, 1, 1, 0])
    with replicator.scope():
        encoder = RunningNormalization()
        encoder(tf.zeros([1, 1]))

    inputs = replicator.make_inputs(reference.batches((observations, valid), 6))
    replicator.replicate(lambda batch: update_statistics([encoder], *batch), inputs, 1)()
    np.testing.assert_allclose(encoder.mean.numpy(), [4.0], rtol=1e-6)
    np.testing.assert_allclose(encoder.variance.numpy(), [8 / 3], rtol=1e-6)
    assert encoder.count.numpy() == 3


def test_an_encoder_that_has_seen_nothing_only_clips():
    encoder = RunningNormalization()
    values = encoder(tf.constant([[-30.0, 2.0, 30.0]])).numpy()
    np.testing.assert_allclose(values, [[-10.0, 2.0, 10.0]], rtol=1e-4)
    assert encoder.trainable_variables == ()


def test_a_huge_observation_does_not_end_the_normalisation():
    large, encoder = 3e38, RunningNormalization()
    encoder(tf.zeros([1, 2]))
    encoder.update(tf.constant([[large, 1.0], [-large, -1.0]]))
    encoder.update(tf.constant([[large, 1.0], [large, -1.0]]))
    values = encoder(tf.constant([[large, 1.0], [0.0, -1.0], [-3e38, 0.0]])).numpy()
    np.testing.assert_allclose(values[:, 1], [1, -1, 0], rtol=1e-3)
    assert values[0, 0] > 0.5 and -1 < values[1, 0] < 0 and values[2, 0] == -10
    assert np.isfinite(encoder.mean.numpy()).all() and np.isfinite(encoder.variance.numpy()).all()
