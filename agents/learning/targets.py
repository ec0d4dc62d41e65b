"""Target networks: copies that follow the online networks."""

from collections.abc import Sequence

import tensorflow as tf


def polyak(target: tf.Tensor, online: tf.Tensor, rate: float) -> tf.Tensor:
    """target + tau * (online - target).

    Args:
      target: float32 of any shape.
      online: as `target`.
      rate: tau in (0, 1]; 1 copies `online`.

    Returns:
      As `target`.
    """
    return tf.identity(online) if rate == 1 else target + rate * (online - target)


def update_targets(
    target: Sequence[tf.Variable],
    online: Sequence[tf.Variable],
    rate: float,
    is_due: tf.Tensor | bool = True,
) -> None:
    """Moves target variables towards the online ones by `polyak`.

    Args:
      target: trainable variables of the target networks.
      online: trainable variables of the online networks, in the same order.
      rate: tau in (0, 1].
      is_due: bool scalar; if false, nothing changes.
    """

    def update() -> tf.Tensor:
        for copy, source in zip(target, online, strict=True):
            copy.assign(polyak(copy, source, rate))
        return tf.constant(True)

    if is_due is True:
        update()
    else:
        tf.cond(is_due, update, lambda: tf.constant(False))
