"""Updates of parameters, as optimizers receive them: checks, and sparse rows."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def check(updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
    """Refuses updates that do not belong to the parameters.

    Args:
      updates: a tensor, `tf.IndexedSlices` or None for each parameter.
      parameters: one or more parameters.

    Raises:
      ValueError: lengths or dtypes differ, no parameter, or no update at all.
    """
    if len(updates) != len(parameters):
        raise ValueError(
            "expected updates and parameters of the same length, got "
            f"{len(updates)} and {len(parameters)}"
        )
    if not parameters:
        raise ValueError("expected at least one parameter, got none")
    if all(update is None for update in updates):
        raise ValueError("expected an update for at least one parameter, got None for all")
    for update, parameter in zip(updates, parameters, strict=True):
        if update is not None and update.dtype != parameter.dtype:
            raise ValueError(
                f"expected an update of {parameter.name!r} with dtype {parameter.dtype.name}, got "
                f"{update.dtype.name}"
            )


def merge_rows(update: Any) -> Any:
    """Sums the rows of a `tf.IndexedSlices` that have one index; returns other updates as is."""
    if not isinstance(update, tf.IndexedSlices):
        return update
    indices, positions = tf.unique(update.indices)
    rows = tf.math.unsorted_segment_sum(update.values, positions, tf.size(indices))
    return tf.IndexedSlices(rows, indices, update.dense_shape)
