"""V-trace and the losses, against the sums of the paper and numbers worked by hand."""

import numpy as np
import pytest
import tensorflow as tf

from agents.impala import losses


def test_two_steps_by_hand():
    """rho = (1, 0.5), c = (1, 0.5); delta_1 = 0.5 (2 + 0.9 * 4 - 3) = 1.3; v_1 = 4.3;

    delta_0 = 1 + 0.9 * 3 - 2 = 1.7; v_0 = 2 + 1.7 + 0.9 * 1.3 = 4.87.
    """
    found = losses.vtrace(
        tf.constant([[2.0, 3.0, 4.0]]),
        tf.constant([[1.0, 2.0]]),
        tf.constant([[0.9, 0.9]]),
        tf.constant([[3.0, 0.5]]),
        tf.ones([1, 2]),
        *(1.0, 1.0, 1.0),
    )
    np.testing.assert_allclose(found.targets, [[4.87, 4.3]], rtol=1e-6)
    # 1 + 0.9 * 4.3 - 2 and 0.5 (2 + 0.9 * 4 - 3).
    np.testing.assert_allclose(found.advantages, [[2.87, 1.3]], rtol=1e-6)


def test_the_values_of_an_unroll_across_episodes_by_hand():
    """The first episode is cut off, its last observation has the value 7; the second terminates."""
    found = losses.vtrace(
        tf.constant([[1.0, 7.0, 2.0, 5.0, 4.0]]),
        tf.constant([[3.0, 0.0, 1.0, 6.0]]),
        tf.constant([[0.5, 0.0, 0.0, 0.5]]),
        tf.ones([1, 4]),
        tf.constant([[1.0, 0.0, 1.0, 1.0]]),
        *(1.0, 1.0, 1.0),
    )
    np.testing.assert_allclose(found.targets, [[3 + 0.5 * 7, 7.0, 1.0, 6 + 0.5 * 4]])
    np.testing.assert_allclose(found.advantages, [[5.5, 0.0, -1.0, 3.0]])


def test_gradients_reach_only_the_policy_and_the_values():
    values = tf.Variable([[1.0, 2.0, 3.0]])
    log_probs, advantages = tf.Variable([[-1.0, -2.0]]), tf.Variable([[0.5, 3.0]])
    with tf.GradientTape(persistent=True) as tape:
        trace = losses.vtrace(values, *[tf.ones([1, 2])] * 4, 1.0, 1.0, 1.0)
        both = tf.reduce_sum(trace.targets) + tf.reduce_sum(trace.advantages)
        policy_loss = losses.policy_loss(log_probs, advantages)
        baseline_loss = losses.baseline_loss(values[:, :-1], tf.constant([[2.0, 5.0]]))
    assert tape.gradient(both, values) is None
    assert float(policy_loss) == pytest.approx((0.5 + 6.0) / 2)
    np.testing.assert_allclose(tape.gradient(policy_loss, log_probs), [[-0.25, -1.5]])
    assert tape.gradient(policy_loss, advantages) is None
    assert float(baseline_loss) == pytest.approx((1 + 9) / 4)
    np.testing.assert_allclose(tape.gradient(baseline_loss, values), [[-0.5, -1.5, 0.0]])
