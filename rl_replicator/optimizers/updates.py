"""Checks the updates that optimizers receive, and merges the rows of sparse updates."""

import contextlib
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
    There are as many rows as before: with XLA, `tf.unique` returns as many indices as it gets, and
    all of them would count in the `tf.unique` of an optimizer that merges rows itself.
    """
    if not isinstance(update, tf.IndexedSlices):
        return update
    # GPUs add rows in the order in which threads reach them, so the replicas' copies of a variable
    # would differ in their last bits.
    with tf.device("/cpu:0") if is_on_gpu(update) else contextlib.nullcontext():
        values, indices = tf.identity(update.values), tf.identity(update.indices)
        count = tf.shape(indices)[0]
        _, places = tf.unique(indices)
        # The maximum of an empty segment is the least number of the dtype.
        found = tf.math.unsorted_segment_max(indices, places, count)
        found = tf.maximum(found, tf.reduce_min(indices))
        sums = tf.math.unsorted_segment_sum(values, places, count)
    return tf.IndexedSlices(sums, found, update.dense_shape)


def is_on_gpu(update: Any) -> bool:
    """Whether an update has rows that the current graph places on a GPU, as replicas' graphs do."""
    if not isinstance(update, tf.IndexedSlices):
        return False
    return tf.DeviceSpec.from_string(update.values.device or "").device_type == "GPU"
