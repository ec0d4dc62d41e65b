"""The losses of MR.Q's model, critics and policy, as pure functions of tensors.

Fujimoto et al. 2025, "Towards General-Purpose Model-Free Reinforcement Learning"
(arXiv:2501.16142). Shapes: B is the batch, T the steps of the unrolled model, A the size of an
action, Z the number of features of a state, M the number of bins of a reward.
"""

import math

import tensorflow as tf

from agents.learning.losses import huber
from agents.mrq.networks import LatentPrediction

# Bins are symexp of numbers evenly spaced between -10 and 10.
_LIMIT = 10.0
# Of uniform numbers: neither 0 nor 1, whose logarithms of logarithms are infinite.
_LEAST = 1e-6


def _symexp(x):
    return tf.sign(x) * (tf.exp(tf.abs(x)) - 1.0)


def two_hot(values, num_bins: int):
    """Divides each value between the two nearest bins, in proportion to how near they are.

    The bins are sign(x) (exp|x| - 1) of x evenly spaced from -10 to 10 (Fujimoto et al. 2025,
    section 4.1). Values beyond them count as the outermost bin.

    Args:
      values: float32 of any shape.
      num_bins: M, at least 2.

    Returns:
      float32 of shape [..., M]; sums to 1.
    """
    spacing = 2.0 * _LIMIT / (num_bins - 1)
    place = (tf.sign(values) * tf.math.log1p(tf.abs(values)) + _LIMIT) / spacing
    lower = tf.clip_by_value(tf.floor(place), 0.0, num_bins - 2.0)
    low, high = _symexp(lower * spacing - _LIMIT), _symexp((lower + 1.0) * spacing - _LIMIT)
    to_upper = tf.expand_dims(tf.clip_by_value((values - low) / (high - low), 0.0, 1.0), -1)
    index = tf.cast(lower, tf.int32)
    return (
        tf.one_hot(index, num_bins) * (1.0 - to_upper) + tf.one_hot(index + 1, num_bins) * to_upper
    )


def model_losses(predicted: LatentPrediction, features, reward, end, valid) -> dict[str, tf.Tensor]:
    """Computes the errors of an unrolled model, each a sum over its steps.

    Fujimoto et al. 2025, equations 12 to 15: the cross-entropy of the reward, and the mean squared
    errors of the next features and of the end.

    Args:
      predicted: the predictions for T steps.
      features: [B, T, Z] float32 features of the states that followed. No gradient reaches them.
      reward: [B, T] float32 rewards that followed.
      end: [B, T] float32, 1 where the episode ended by termination.
      valid: [B, T] float32, 0 for steps after the end of an episode, which count nothing.

    Returns:
      Scalars: "dynamics", "reward" and "end".
    """
    target = two_hot(reward, predicted.reward.shape[-1])  # [B, T, M]
    errors = {
        "dynamics": tf.reduce_mean(
            tf.math.squared_difference(predicted.features, tf.stop_gradient(features)), axis=-1
        ),
        "reward": tf.nn.softmax_cross_entropy_with_logits(labels=target, logits=predicted.reward),
        "end": tf.math.squared_difference(predicted.end, end),
    }  # [B, T] each
    return {
        name: tf.reduce_mean(tf.reduce_sum(valid * error, axis=1)) for name, error in errors.items()
    }


def scaled_target(r_t, d_t, q_t, scale, target_scale):
    """Computes the target of both critics, whose values are in units of the mean reward.

    Fujimoto et al. 2025, equation 18: y = (R_n + d r' min_i Q'_i(s', a')) / r, where r is the scale
    of the critics, and r' that of the target critics.

    Args:
      r_t: [B] float32 n-step return.
      d_t: [B] float32 gamma**n * prod(discounts); 0 after termination.
      q_t: [B, 2] float32 target critics at the bootstrap observation.
      scale: float32 scalar r, positive.
      target_scale: float32 scalar r'.

    Returns:
      [B] float32. No gradient.
    """
    q = target_scale * tf.reduce_min(q_t, axis=-1)
    return tf.stop_gradient((r_t + d_t * q) / scale)


def critic_loss(td_errors, weights):
    """The mean Huber loss of both critics: [B, 2], [B] float32 -> scalar.

    Fujimoto et al. 2025, equation 17; it makes the gradients of LAP those of uniform samples
    (Fujimoto et al. 2020, arXiv:2007.06049, section 5.2), with `weights` that are all 1.
    """
    return tf.reduce_mean(weights * tf.reduce_mean(huber(td_errors), axis=-1))


def priorities(td_errors):
    """LAP's priorities before the exponent: max(|e_1|, |e_2|, 1), [B, 2] -> [B] float32.

    Fujimoto et al. 2020 (arXiv:2007.06049), equation 13.
    """
    return tf.stop_gradient(tf.maximum(tf.reduce_max(tf.abs(td_errors), axis=-1), 1.0))


def policy_loss(q, preactivations, penalty: float):
    """Computes the loss of the policy: -E[Q] plus a penalty on the inputs of its last function.

    Fujimoto et al. 2025, equation 19, averaged over both critics.

    Args:
      q: [B, 2] float32 critics at the policy's actions.
      preactivations: [B, A] float32, the inputs of tanh or softmax.
      penalty: weight of their mean square.

    Returns:
      float32 scalar.
    """
    return -tf.reduce_mean(q) + penalty * tf.reduce_mean(tf.square(preactivations))


def gumbel_softmax(logits, noise, temperature: float):
    """Draws a differentiable one-hot vector from a categorical distribution.

    Jang et al. 2017 (arXiv:1611.01144), equation 2. The normal distribution function makes the
    noise uniform, and -log(-log u) makes that Gumbel's.

    Args:
      logits: [B, A] float32; minus infinity for an action that cannot be drawn.
      noise: [B, A] float32 from the standard normal distribution.
      temperature: the higher, the more equal are the results.

    Returns:
      [B, A] float32 in [0, 1]; sums to 1.
    """
    u = 0.5 * (1.0 + tf.math.erf(noise / math.sqrt(2.0)))
    u = tf.clip_by_value(u, _LEAST, 1.0 - _LEAST)
    gumbel = -tf.math.log(-tf.math.log(u))
    return tf.nn.softmax((logits + gumbel) / temperature)
