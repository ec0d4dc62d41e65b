"""What a classifier minimises, and what it is judged by."""

import tensorflow as tf


def smoothed_cross_entropy(
    labels: tf.Tensor, logits: tf.Tensor, smoothing: float = 0.0
) -> tf.Tensor:
    """Cross-entropy to labels that are right with probability `1 - smoothing`, per example.

    Szegedy et al. 2016, section 7 (arXiv:1512.00567): `-sum_k q(k) log p(k)` with
    `q(k) = (1 - smoothing) [k = label] + smoothing / K`.

    Args:
      labels: [B] int, in [0, K).
      logits: [B, K] float32.
      smoothing: in [0, 1).

    Returns:
      [B] float32.
    """
    log_p = tf.nn.log_softmax(logits)  # [B, K]
    right = tf.gather(log_p, labels, batch_dims=1)  # [B]
    return -(1.0 - smoothing) * right - smoothing * tf.reduce_mean(log_p, axis=1)


def in_top(k: int, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Whether fewer than k logits are higher than, or tie with, the label's own; per example.

    Ties count against the classifier: one that says the same of all classes knows nothing. So do
    logits that are not a number.

    Args:
      k: from 1.
      labels: [B] int, in [0, K).
      logits: [B, K].

    Returns:
      [B] float32, 1 or 0.
    """
    own = tf.gather(logits, labels, batch_dims=1)  # [B]
    not_lower = tf.logical_not(logits < own[:, None])  # [B, K], with the label itself.
    return tf.cast(tf.reduce_sum(tf.cast(not_lower, tf.int32), axis=1) <= k, tf.float32)
