"""SAC's density, targets and losses by hand."""

import math

import numpy as np
import tensorflow as tf

from agents.sac import losses


def test_the_density_of_a_squashed_gaussian():
    """By the change of variables, and it integrates to 1."""
    mean, stddev = tf.constant([[0.3]]), tf.constant([[0.5]])
    action, log_prob = losses.squashed_sample(mean, stddev, tf.constant([[0.8]]))
    u = 0.3 + 0.5 * 0.8
    normal = math.exp(-0.5 * 0.8**2) / (0.5 * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(action, [[math.tanh(u)]], rtol=1e-6)
    np.testing.assert_allclose(log_prob, [math.log(normal / (1 - math.tanh(u) ** 2))], rtol=1e-5)

    noise = np.linspace(-6, 6, 4001, dtype=np.float32)[:, None]
    actions, log_probs = losses.squashed_sample(
        tf.fill([4001, 1], 0.3), tf.fill([4001, 1], 0.5), tf.constant(noise)
    )
    area = np.trapz(np.exp(log_probs.numpy().astype(np.float64)), actions[:, 0].numpy())
    assert abs(area - 1) < 1e-3


def test_the_density_far_out_is_finite():
    """For large u, 1 - tanh(u)**2 is 0 in float32, but its logarithm is log(4) - 2 u."""
    _, log_prob = losses.squashed_sample(
        tf.constant([[50.0]]), tf.constant([[1.0]]), tf.constant([[0.0]])
    )
    expected = -0.5 * math.log(2 * math.pi) - (math.log(4) - 100.0)
    np.testing.assert_allclose(log_prob, [expected], rtol=1e-6)


def test_the_target_counts_the_smaller_critic_and_the_entropy():
    # 1 + 0.5 * (3 - 0.2 * -2) = 2.7; after termination the reward alone.
    q_t = tf.constant([[4.0, 3.0], [9.0, 8.0]])
    with tf.GradientTape() as tape:
        tape.watch(q_t)
        target = losses.soft_target(
            tf.constant([1.0, 2.0]), tf.constant([0.5, 0.0]), q_t, tf.constant([-2.0, 1.0]), 0.2
        )
    np.testing.assert_allclose(target, [2.7, 2.0], rtol=1e-6)
    assert tape.gradient(target, q_t) is None


def test_the_temperature_grows_while_the_entropy_is_below_its_target():
    def gradient(entropy):
        log_alpha, log_prob = tf.constant(math.log(0.5)), tf.constant([1 - entropy, -1 - entropy])
        with tf.GradientTape() as tape:
            tape.watch([log_alpha, log_prob])
            loss = losses.temperature_loss(log_alpha, log_prob, target_entropy=-2.0)
        of_alpha, of_log_prob = tape.gradient(loss, [log_alpha, log_prob])
        assert of_log_prob is None
        return of_alpha

    # -0.5 * (3 - 2) = -0.5: descending raises log(alpha). At the target, it stays.
    np.testing.assert_allclose(gradient(entropy=-3.0), -0.5, rtol=1e-6)
    np.testing.assert_allclose(gradient(entropy=-2.0), 0.0, atol=1e-7)
    np.testing.assert_allclose(gradient(entropy=1.0), 1.5, rtol=1e-6)
