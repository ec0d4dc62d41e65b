"""Losses of a TD error, for critics that predict the expected return."""

from collections.abc import Callable

import tensorflow as tf

from agents.registry import check_shape, find_part

TDLoss = Callable[[tf.Tensor], tf.Tensor]


def squared(td_errors):
    """Half of the squared error: L = e**2 / 2.

    Args:
      td_errors: float32 of any shape.

    Returns:
      As `td_errors`.
    """
    return 0.5 * tf.square(td_errors)


def huber(td_errors):
    """The Huber loss with threshold 1: e**2 / 2 for |e| <= 1, else |e| - 1 / 2.

    Huber 1964; used for TD errors by Mnih et al. 2015.

    Args:
      td_errors: float32 of any shape.

    Returns:
      As `td_errors`.
    """
    size = tf.abs(td_errors)
    return tf.where(size <= 1.0, 0.5 * tf.square(td_errors), size - 0.5)


TD_LOSSES = {"squared": squared, "huber": huber}


_OPTION = "agent.td_loss"


def find_td_loss(name: str) -> TDLoss:
    """Returns the function that `--agent.td-loss` names: TD errors -> losses of the same shape.

    Raises:
      ConfigError: if there is none.
    """
    return find_part(name, TD_LOSSES, _OPTION)


def checked(td_loss: TDLoss) -> TDLoss:
    """Returns the function with a check of its results.

    Args:
      td_loss: TD errors -> losses of the same shape. It may be user-defined.

    Returns:
      The same, but it raises ConfigError for losses of another shape.
    """

    def losses_of(td_errors: tf.Tensor) -> tf.Tensor:
        losses = tf.convert_to_tensor(td_loss(td_errors))
        check_shape(_OPTION, "losses", losses.shape, td_errors.shape, each="TD error")
        return losses

    return losses_of
