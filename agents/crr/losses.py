"""The policy's density, its samples and its loss in CRR, as pure functions of tensors.

Wang et al. 2020, "Critic Regularized Regression" (arXiv:2006.15134). Shapes: B is the batch, A the
number of action dimensions, M the number of components of the policy, m the number of samples.
"""

import math

import numpy as np
import tensorflow as tf


def log_density(logits, mean, stddev, action):
    """log pi(a|s) of a mixture of diagonal Gaussians.

    Args:
      logits: [B, M] float32, of the components.
      mean: [B, M, A] float32.
      stddev: [B, M, A] float32, positive.
      action: [B, A] float32.

    Returns:
      [B] float32.
    """
    z = (action[:, None, :] - mean) / stddev  # [B, M, A]
    log_normal = -0.5 * tf.square(z) - tf.math.log(stddev) - 0.5 * math.log(2.0 * math.pi)
    of_components = tf.reduce_sum(log_normal, axis=-1)  # [B, M]
    return tf.reduce_logsumexp(tf.nn.log_softmax(logits) + of_components, axis=-1)


def sample(logits, mean, stddev, noise):
    """Draws an action from a mixture of diagonal Gaussians.

    The first number of the noise, through the normal distribution function, chooses the component
    by the cumulative weights.

    Args:
      logits: [B, M] float32, of the components.
      mean: [B, M, A] float32.
      stddev: [B, M, A] float32, positive.
      noise: [B, 1 + A] float32 from the standard normal distribution.

    Returns:
      [B, A] float32, clipped to [-1, 1], the range of actions. No gradient.
    """
    u = 0.5 * (1.0 + tf.math.erf(noise[:, :1] / math.sqrt(2.0)))  # [B, 1], uniform
    weights = tf.nn.softmax(logits)  # [B, M]
    # A product with ones, because DTensor has no cumulative sum.
    num_components = logits.shape[1]
    before = weights @ np.triu(np.ones([num_components, num_components], np.float32), 1)
    is_reached = tf.cast(u >= before, tf.float32)  # [B, M], ones and then zeros
    # The last component that is reached: its own one is not followed by another.
    chosen = is_reached - tf.pad(is_reached[:, 1:], [[0, 0], [0, 1]])  # [B, M]
    of_chosen = [tf.reduce_sum(chosen[..., None] * x, axis=1) for x in (mean, stddev)]  # [B, A]
    action = of_chosen[0] + of_chosen[1] * noise[:, 1:]
    return tf.stop_gradient(tf.clip_by_value(action, -1.0, 1.0))


def advantage(q, q_samples, baseline: str):
    """Estimates the advantage of recorded actions.

    Wang et al. 2020, equation 3 (`mean`): A = Q(s, a) - 1/m sum_j Q(s, a_j), and the maximum in
    place of the mean (`max`).

    Args:
      q: [B] float32, values of the recorded actions.
      q_samples: [m, B] float32, values of actions of the policy.
      baseline: "mean" or "max".

    Returns:
      [B] float32.
    """
    reduce = {"mean": tf.reduce_mean, "max": tf.reduce_max}[baseline]
    return q - reduce(q_samples, axis=0)


def binary(advantages, beta: float, max_weight: float):
    """f = 1 if A > 0, else 0: [B] float32 -> [B] float32. Wang et al. 2020, equation 4."""
    del beta, max_weight
    return tf.cast(advantages > 0, tf.float32)


def exponential(advantages, beta: float, max_weight: float):
    """f = min(exp(A / beta), the greatest weight): [B] -> [B] float32. Equation 5, bounded."""
    return tf.minimum(tf.exp(advantages / beta), max_weight)


def constant(advantages, beta: float, max_weight: float):
    """f = 1, behaviour cloning: [B] float32 -> [B] float32."""
    del beta, max_weight
    return tf.ones_like(advantages)


WEIGHTINGS = {"binary": binary, "exp": exponential, "none": constant}


def policy_loss(log_densities, weights):
    """Computes the loss of the policy: E[-f log pi(a|s)].

    Wang et al. 2020, equation 2.

    Args:
      log_densities: [B] float32, of the recorded actions.
      weights: [B] float32, f. No gradient reaches them.

    Returns:
      float32 scalar.
    """
    return -tf.reduce_mean(tf.stop_gradient(weights) * log_densities)
