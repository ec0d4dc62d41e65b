"""The policy's density, the targets and the losses of SAC, as pure functions of tensors.

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv:1812.05905). Shapes: B
is the batch, A the number of action dimensions.
"""

import math

import tensorflow as tf


def squashed_sample(mean, stddev, noise):
    """Computes an action of a squashed Gaussian policy and its log-probability.

    a = tanh(u) with u = mean + stddev * noise, and (appendix C of the paper)
    log pi(a) = log N(u; mean, stddev) - sum_i log(1 - tanh(u_i)**2), where
    log(1 - tanh(u)**2) = 2 (log 2 - u - softplus(-2 u)) without cancellation.

    Args:
      mean: [B, A] float32.
      stddev: [B, A] float32, positive.
      noise: [B, A] float32 from the standard normal distribution.

    Returns:
      [B, A] float32 actions in [-1, 1] and their [B] log-probabilities, both differentiable in
      `mean` and `stddev` (the reparametrisation trick).
    """
    u = mean + stddev * noise  # [B, A]
    log_normal = -0.5 * tf.square(noise) - tf.math.log(stddev) - 0.5 * math.log(2.0 * math.pi)
    log_derivative = 2.0 * (math.log(2.0) - u - tf.nn.softplus(-2.0 * u))
    return tf.tanh(u), tf.reduce_sum(log_normal - log_derivative, axis=-1)


def soft_target(r_t, d_t, q_t, log_prob_t, temperature):
    """Computes the target of both critics.

    Haarnoja et al. 2018, equations 3 and 5, with n-step returns:
    y = R_n + d (min_i Q'_i(s', a') - alpha log pi(a'|s')).

    Args:
      r_t: [B] float32 n-step return, discounted by the adder.
      d_t: [B] float32 gamma**n * prod(discounts); 0 after termination.
      q_t: [B, 2] float32 target critics at the bootstrap observation and the policy's action.
      log_prob_t: [B] float32, of that action.
      temperature: float32 scalar alpha.

    Returns:
      [B] float32. No gradient.
    """
    soft_value = tf.reduce_min(q_t, axis=-1) - temperature * log_prob_t
    return tf.stop_gradient(r_t + d_t * soft_value)


def policy_loss(q_tm1, log_prob_tm1, temperature):
    """Computes the policy's loss: E[alpha log pi(a|s) - min_i Q_i(s, a)].

    Haarnoja et al. 2018, equation 9.

    Args:
      q_tm1: [B, 2] float32 online critics at the policy's action.
      log_prob_tm1: [B] float32, of that action.
      temperature: float32 scalar alpha. No gradient reaches it.

    Returns:
      float32 scalar.
    """
    temperature = tf.stop_gradient(temperature)
    return tf.reduce_mean(temperature * log_prob_tm1 - tf.reduce_min(q_tm1, axis=-1))


def temperature_loss(log_temperature, log_prob_tm1, target_entropy: float):
    """Computes the temperature's loss: E[-alpha (log pi(a|s) + target entropy)].

    Haarnoja et al. 2018, equation 18: alpha grows while the entropy is below its target.

    Args:
      log_temperature: float32 scalar, log(alpha).
      log_prob_tm1: [B] float32, of the policy's actions. No gradient reaches it.
      target_entropy: the target entropy in nats.

    Returns:
      float32 scalar.
    """
    missing = tf.stop_gradient(log_prob_tm1 + target_entropy)  # [B]
    return -tf.reduce_mean(tf.exp(log_temperature) * missing)
