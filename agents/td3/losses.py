"""The targets and losses of TD3, as pure functions of tensors.

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods"
(arXiv:1802.09477). Shapes: B is the batch, A the number of action dimensions.
"""

import tensorflow as tf


def smoothed_action(action, noise, max_noise: float):
    """Adds clipped noise to the target policy's action.

    Fujimoto et al. 2018, section 5.3: a = clip(pi'(s) + clip(epsilon, -c, c), -1, 1). Similar
    actions then have similar targets.

    Args:
      action: [B, A] float32 in [-1, 1], of the target policy.
      noise: [B, A] float32, epsilon.
      max_noise: c, the largest size of the noise.

    Returns:
      [B, A] float32 in [-1, 1].
    """
    return tf.clip_by_value(action + tf.clip_by_value(noise, -max_noise, max_noise), -1.0, 1.0)


def clipped_double_q_target(r_t, d_t, q_t):
    """Computes the target of both critics.

    Fujimoto et al. 2018, equation 10, with n-step returns: y = R_n + d min_i Q'_i(s', a').

    Args:
      r_t: [B] float32 n-step return, discounted by the adder.
      d_t: [B] float32 gamma**n * prod(discounts); 0 after termination.
      q_t: [B, 2] float32 target critics at the bootstrap observation.

    Returns:
      [B] float32. No gradient.
    """
    return tf.stop_gradient(r_t + d_t * tf.reduce_min(q_t, axis=-1))


def policy_loss(q_tm1):
    """Computes the loss of the deterministic policy: -E[Q_1(s, pi(s))].

    Its gradient is the deterministic policy gradient (Silver et al. 2014), of the first critic
    alone (Fujimoto et al. 2018, Algorithm 1).

    Args:
      q_tm1: [B, 2] float32 online critics at the policy's action.

    Returns:
      float32 scalar.
    """
    return -tf.reduce_mean(q_tm1[:, 0])
