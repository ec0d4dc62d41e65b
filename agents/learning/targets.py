"""Target networks: copies that follow the online networks."""

from collections.abc import Sequence

import tensorflow as tf


def polyak(target: tf.Tensor, online: tf.Tensor, rate: tf.Tensor | float) -> tf.Tensor:
    """target + tau * (online - target).

    Args:
      target: float32 of any shape.
      online: float32 of the same shape.
      rate: tau in (0, 1]; the number 1 copies `online`.

    Returns:
      As `target`.
    """
    is_copy = not tf.is_tensor(rate) and rate == 1
    return tf.identity(online) if is_copy else target + rate * (online - target)


def update_targets(
    target: Sequence[tf.Variable],
    online: Sequence[tf.Variable],
    rate: tf.Tensor | float,
    is_due: tf.Tensor | bool = True,
) -> None:
    """Moves target variables towards the online ones by `polyak`.

    Args:
      target: trainable variables of the target networks.
      online: trainable variables of the online networks, in the same order.
      rate: tau in (0, 1].
      is_due: bool scalar; if false, nothing changes.
    """

    def update() -> None:
        for copy, source in zip(target, online, strict=True):
            copy.assign(polyak(copy, source, rate))

    if is_due is True:
        update()
    else:
        tf.cond(is_due, update, lambda: None)
