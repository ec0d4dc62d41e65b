"""Checks the updates that optimizers receive, and merges the rows of sparse updates."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def check(updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
    """Refuses updates that do not belong to the parameters.

    Args:
      updates: a tensor, `tf.IndexedSlices` or None for each parameter.
      parameters: one or more parameters.

    Raises:
      ValueError: if lengths or dtypes differ, or there is no parameter or no update at all.
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
    """Sums the rows of a `tf.IndexedSlices` that have the same index; returns other updates as is.

    One row of each index holds the sum, and any others are zeros, so further merges change nothing.
    All replicas get the same bits from the same rows, even on GPUs.
    """
    if not isinstance(update, tf.IndexedSlices):
        return update
    if is_on_gpu(update):
        values, indices = _summed_in_order(update.values, update.indices)
    else:
        values, indices = _summed(update.values, update.indices)
    return tf.IndexedSlices(values, indices, update.dense_shape)


def is_on_gpu(update: tf.IndexedSlices) -> bool:
    """Whether the current graph places these rows on a GPU by name, as replicas' graphs do."""
    return tf.DeviceSpec.from_string(update.values.device or "").device_type == "GPU"


def _summed(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums rows by index; returns as many rows as it gets.

    With XLA, `tf.unique` returns as many rows as it gets. If these were passed to another
    `tf.unique`, such as that of an optimizer that merges rows itself, all of them would count.

    Args:
      values: rows, [N, ...].
      indices: [N].

    Returns:
      The sums, [N, ...], and then zeros; their indices, [N], and then the least one.
    """
    count = tf.shape(indices)[0]
    _, places = tf.unique(indices)
    least = tf.reduce_min(indices)
    # The maximum of an empty segment is the least number of the dtype.
    found = tf.maximum(tf.math.unsorted_segment_max(indices, places, count), least)
    return tf.math.unsorted_segment_sum(values, places, count), found


def _summed_in_order(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums rows by index, in the same order each time.

    On GPUs, TensorFlow's segment sums add rows in the order in which threads reach them, so the
    replicas' copies of a variable would differ in their last bits.

    Args:
      values: rows, [N, ...].
      indices: [N].

    Returns:
      The sums, [M, ...], and their indices, [M], in ascending order.
    """
    order = tf.argsort(indices, stable=True)
    indices, values = tf.gather(indices, order), tf.gather(values, order)
    count = tf.size(indices)

    def body(distance: Any, sums: tf.Tensor) -> tuple[Any, tf.Tensor]:
        # After this, a row holds the sum of those with its index among the last 2 * distance rows.
        same = tf.equal(indices[distance:], indices[:-distance])
        same = tf.reshape(same, tf.concat([[-1], tf.ones([tf.rank(sums) - 1], tf.int32)], 0))
        earlier = tf.where(same, sums[:-distance], tf.zeros([], sums.dtype))
        return 2 * distance, tf.concat([sums[:distance], sums[distance:] + earlier], 0)

    _, values = tf.while_loop(
        lambda distance, _: distance < count,
        body,
        [tf.constant(1), values],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, *values.shape[1:]])],
    )
    # The last row of each index has the whole sum.
    end = tf.fill([tf.minimum(count, 1)], True)
    is_last = tf.concat([tf.not_equal(indices[1:], indices[:-1]), end], 0)
    return tf.boolean_mask(values, is_last), tf.boolean_mask(indices, is_last)
