"""Target networks: copies that follow the online networks."""

from collections.abc import Iterable

import sonnet as snt
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
    target: Iterable[snt.Module],
    online: Iterable[snt.Module],
    rate: tf.Tensor | float,
    is_due: tf.Tensor | bool = True,
) -> None:
    """Moves the trainable variables of networks towards others by `polyak`, and copies the rest.

    Variables that no loss trains, such as moving statistics or a random projection, belong to the
    trained weights around them: a mixture of two of them fits neither.

    Args:
      target: built networks, which change; a network that is also in `online` stays unchanged.
      online: built networks of the same shapes, in the same order.
      rate: tau in (0, 1].
      is_due: bool scalar; if false, nothing changes.
    """

    pairs = [
        pair
        for copy, source in zip(target, online, strict=True)
        if copy is not source
        for pair in zip(copy.variables, source.variables, strict=True)
    ]

    def update() -> None:
        for copy, source in pairs:
            copy.assign(polyak(copy, source, rate if source.trainable else 1.0))

    if is_due is True:
        update()
    else:
        tf.cond(is_due, update, lambda: None)
