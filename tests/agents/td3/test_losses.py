"""TD3's targets and losses by hand."""

import numpy as np
import pytest
import tensorflow as tf

from agents.learning.losses import checked_td_loss, find_td_loss, huber, squared
from agents.td3 import losses
from rl_replicator.errors import ConfigError


def test_the_target_is_that_of_the_smaller_critic():
    # 1 + 0.5 * min(4, 3) = 2.5; after termination the reward alone; -1 + 0.9 * -2 = -2.8.
    q_t = tf.constant([[4.0, 3.0], [9.0, 8.0], [-2.0, 5.0]])
    r_t, d_t = tf.constant([1.0, 2.0, -1.0]), tf.constant([0.5, 0.0, 0.9])
    with tf.GradientTape() as tape:
        tape.watch(q_t)
        target = losses.clipped_double_q_target(r_t, d_t, q_t)
    np.testing.assert_allclose(target, [2.5, 2.0, -2.8], rtol=1e-6)
    assert tape.gradient(target, q_t) is None


def test_noise_and_action_are_clipped():
    action = tf.constant([[0.2, 0.9, -0.9, 0.7]])
    noise = tf.constant([[0.1, 0.4, -3.0, -3.0]])
    # 0.2 + 0.1; 0.9 + 0.4 > 1; -0.9 - 0.5 < -1; 0.7 - 0.5.
    expected = [[0.3, 1.0, -1.0, 0.2]]
    np.testing.assert_allclose(losses.smoothed_action(action, noise, 0.5), expected, rtol=1e-6)


def test_the_policy_ascends_the_first_critic_alone():
    q = tf.constant([[1.0, 7.0], [3.0, 9.0]])
    with tf.GradientTape() as tape:
        tape.watch(q)
        loss = losses.policy_loss(q)
    np.testing.assert_allclose(loss, -2.0)
    np.testing.assert_allclose(tape.gradient(loss, q), [[-0.5, 0.0], [-0.5, 0.0]])


def test_losses_of_a_td_error_by_hand():
    errors = tf.constant([-3.0, 0.5, 1.0, 1.5])
    np.testing.assert_allclose(squared(errors), [4.5, 0.125, 0.5, 1.125])
    np.testing.assert_allclose(huber(errors), [2.5, 0.125, 0.5, 1.0])


def summed(td_errors):
    return tf.reduce_sum(squared(td_errors), axis=-1)


def test_a_loss_of_another_shape_is_refused():
    """The learner would sum again, over the batch."""
    td_errors = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(
        checked_td_loss(find_td_loss("huber"))(td_errors), huber(td_errors)
    )
    match = r"--agent.td-loss: .* shape \(2, 2\), got \(2,\); return one for each TD error"
    with pytest.raises(ConfigError, match=match):
        checked_td_loss(find_td_loss(f"{__name__}:summed"))(td_errors)
