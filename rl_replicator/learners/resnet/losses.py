"""The classifier's loss and accuracy."""

import tensorflow as tf


def smoothed_cross_entropy(
    labels: tf.Tensor, logits: tf.Tensor, smoothing: float = 0.0
) -> tf.Tensor:
    """Computes the cross-entropy with label smoothing for each example.

    `-sum_k q(k) log p(k)` with `q(k) = (1 - smoothing) [k = label] + smoothing / K`: Szegedy et al.
    2016 (arXiv:1512.00567), section 7.

    Args:
      labels: [B] int, in [0, K).
      logits: [B, K] float32.
      smoothing: probability mass spread evenly over all classes, in [0, 1).

    Returns:
      [B] float32.
    """
    log_p = tf.nn.log_softmax(logits)  # [B, K]
    log_p_label = tf.gather(log_p, labels, batch_dims=1)  # [B]
    return -(1.0 - smoothing) * log_p_label - smoothing * tf.reduce_mean(log_p, axis=1)


def in_top(k: int, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns for each example whether the label is among the k highest logits.

    Ties count against the classifier, because equal logits for all classes contain no information.
    NaN counts against it, too.

    Args:
      k: number of highest logits, at least 1.
      labels: [B] int, in [0, K).
      logits: [B, K].

    Returns:
      [B] float32, 1 or 0.
    """
    own = tf.gather(logits, labels, batch_dims=1)  # [B]
    not_lower = tf.logical_not(logits < own[:, None])  # [B, K], true for the label itself.
    return tf.cast(tf.reduce_sum(tf.cast(not_lower, tf.int32), axis=1) <= k, tf.float32)
