"""V-trace and the losses of IMPALA, as pure functions of tensors.

Espeholt et al. 2018 (arXiv:1802.01561). Shapes: B is the batch, T the length of an unroll.
"""

from typing import NamedTuple

import tensorflow as tf


class VTrace(NamedTuple):
    """What V-trace computes, without gradients.

    Attributes:
      targets: [B, T] float32 v_s, the targets of the values.
      advantages: [B, T] float32 rho_s (r_s + gamma v_{s+1} - V(x_s)), the weights of the policy's
        gradient.
    """

    targets: tf.Tensor
    advantages: tf.Tensor


def vtrace(values, rewards, discounts, ratios, valid, max_rho, max_c, lambda_):
    """Computes targets and advantages from actions of other policies.

    Equation 1 and section 4.2 of the paper, in its recursive form (remark 1):
    v_s = V(x_s) + delta_s + gamma_s c_s (v_{s+1} - V(x_{s+1})), where
    delta_s = rho_s (r_s + gamma_s V(x_{s+1}) - V(x_s)), rho_s = min(rho-bar, pi / mu) and
    c_s = lambda min(c-bar, pi / mu). A step without an action has delta_s = 0: its target is its
    value.

    Args:
      values: [B, T + 1] float32 V(x_s); the last one is bootstrapped from.
      rewards: [B, T] float32.
      discounts: [B, T] float32, gamma times the environment's discount; 0 where a row is not valid.
      ratios: [B, T] float32 pi(a_s|x_s) / mu(a_s|x_s).
      valid: [B, T] float32, 1 where a row has an action.
      max_rho: rho-bar.
      max_c: c-bar.
      lambda_: lambda.

    Returns:
      `VTrace`.
    """
    rhos = valid * tf.minimum(max_rho, ratios)  # [B, T]
    factors = lambda_ * discounts * tf.minimum(max_c, ratios)  # [B, T]
    deltas = rhos * (rewards + discounts * values[:, 1:] - values[:, :-1])  # [B, T]
    correction = tf.zeros_like(values[:, 0])  # [B], v_{s+1} - V(x_{s+1})
    corrections = [correction]
    for s in reversed(range(values.shape[1] - 1)):
        correction = deltas[:, s] + factors[:, s] * correction
        corrections.append(correction)
    targets = values + tf.stack(corrections[::-1], axis=1)  # [B, T + 1]
    advantages = rhos * (rewards + discounts * targets[:, 1:] - values[:, :-1])
    return VTrace(tf.stop_gradient(targets[:, :-1]), tf.stop_gradient(advantages))


def policy_loss(log_probs, advantages):
    """Computes the loss whose gradient is that of the policy: -E[advantage log pi(a|x)].

    Args:
      log_probs: [B, T] float32 of the actions taken.
      advantages: [B, T] float32, 0 for steps without an action. No gradient reaches them.

    Returns:
      float32 scalar.
    """
    return -tf.reduce_mean(tf.stop_gradient(advantages) * log_probs)


def baseline_loss(values, targets):
    """Computes the loss of the values: half the mean squared difference.

    Args:
      values: [B, T] float32.
      targets: [B, T] float32. No gradient reaches them.

    Returns:
      float32 scalar.
    """
    return 0.5 * tf.reduce_mean(tf.square(tf.stop_gradient(targets) - values))
