"""Pure functions of DQN's step. Shapes: B is the batch, A the number of actions."""

import tensorflow as tf

_RESCALING = 1e-3  # eps.


def legal_values(values, mask):
    """Replaces the values of illegal actions by minus infinity.

    Args:
      values: [B, A] float32.
      mask: [B, A] float32, 0 where an action is illegal; None if all are legal.

    Returns:
      [B, A] float32.
    """
    return values if mask is None else tf.where(mask > 0, values, -float("inf"))


def best_action(values):
    """Chooses the action with the highest value, the first one of several.

    If none is legal, as after the end of an episode, it is 0.

    Args:
      values: [B, A] float32, minus infinity for illegal actions.

    Returns:
      [B] int32.
    """
    return tf.argmax(values, axis=-1, output_type=tf.int32)


def rescaled(values):
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, eps 1e-3: large values become small.

    Pohlen et al. 2018 (arXiv:1805.11593), proposition A.2, as in R2D2.

    Args:
      values: float32 of any shape.

    Returns:
      As `values`.
    """
    return tf.sign(values) * (tf.sqrt(tf.abs(values) + 1.0) - 1.0) + _RESCALING * values


def unrescaled(values):
    """The inverse of `rescaled`, with eps 1e-3:

        sign(x) (((sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps))**2 - 1)

    Args:
      values: float32 of any shape.

    Returns:
      As `values`.
    """
    # The numerator is a small difference; multiplied by its conjugate, it loses no digits.
    inner = tf.abs(values) + 1.0 + _RESCALING
    root = 2.0 * inner / (tf.sqrt(1.0 + 4.0 * _RESCALING * inner) + 1.0)
    return tf.sign(values) * (tf.square(root) - 1.0)


def of_action(outputs, action):
    """Selects the outputs of one action per example.

    Args:
      outputs: [B, A, Z] float32.
      action: [B] int32.

    Returns:
      [B, Z] float32.
    """
    chosen = tf.one_hot(action, outputs.shape[1], dtype=outputs.dtype)  # [B, A]
    return tf.reduce_sum(outputs * chosen[:, :, None], axis=1)
