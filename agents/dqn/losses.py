"""Pure functions of DQN's step. Shapes: B is the batch, A the number of actions."""

import tensorflow as tf


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
