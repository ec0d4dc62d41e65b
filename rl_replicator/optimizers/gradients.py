"""Gradient post-processing: unscaling, clipping, and skipping steps that are not finite."""

import contextlib
import dataclasses
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors

REDUCTIONS = ("mean", "sum", "none")
# The dynamic loss scale starts at INITIAL_SCALE. A step with a skipped update halves it, and
# GROWTH_INTERVAL consecutive finite updates double it.
INITIAL_SCALE = 2.0**15
GROWTH_INTERVAL = 2000
# No gradient reaches this norm. Near the limit of float32, clipping to a norm turns all gradients
# into zeros, infinity or NaN.
_MAX_NORM = 1e30
_HALVES = (tf.float16, tf.bfloat16)


@dataclasses.dataclass(frozen=True)
class Options:
    """How gradients are processed before they are applied; see `Replicator.wrap_optimizer`.

    Attributes:
      reduction: "mean" or "sum" over the replicas; "none" if the step reduces them itself.
      max_global_norm: clips the reduced gradients to this global norm; None does not clip.
      loss_scale: a positive number, "dynamic", or None for no scaling.
      skip_nonfinite: whether to skip steps whose gradients contain NaN or infinity.

    Raises:
      ConfigError: if an option has an invalid value.
    """

    reduction: str
    max_global_norm: float | None
    loss_scale: float | str | None
    skip_nonfinite: bool

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise errors.ConfigError(
                f"expected a reduction out of {', '.join(REDUCTIONS)}, got {self.reduction!r}; "
                "use one of them"
            )
        if self.max_global_norm is not None and not 0 < self.max_global_norm <= _MAX_NORM:
            raise errors.ConfigError(
                f"expected max_global_norm above 0 and up to {_MAX_NORM:g}, got "
                f"{self.max_global_norm}; use None not to clip"
            )
        scale = self.loss_scale
        is_number = isinstance(scale, numbers.Real) and 0 < scale < float("inf")
        if not (scale is None or scale == "dynamic" or is_number):
            raise errors.ConfigError(
                f'expected a loss_scale above 0, "dynamic" or None, got {scale!r}; use one of them'
            )

    @property
    def is_dynamic(self) -> bool:
        """Whether the loss scale adapts to the gradients."""
        return self.loss_scale == "dynamic"

    @property
    def skips(self) -> bool:
        """Whether gradients are checked for NaN and infinity; dynamic scaling needs it."""
        return self.skip_nonfinite or self.is_dynamic


def widen(updates: Sequence[Any]) -> list[Any]:
    """Casts float16 and bfloat16 gradients to float32.

    All arithmetic on gradients is done in float32: in float16 a loss scale of 65,536 is infinite,
    a scaled gradient divided by it is 0, and the square of a norm above 255 overflows.

    Args:
      updates: tensors, `tf.IndexedSlices` or None.

    Returns:
      A list of the same structure and shapes. Other dtypes and None are unchanged.
    """
    return [
        _map(lambda x: tf.cast(x, tf.float32) if x.dtype in _HALVES else x, update)
        for update in updates
    ]


def narrow(updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> list[Any]:
    """Casts float32 gradients of float16 and bfloat16 parameters to the parameter's dtype.

    The inverse of `widen`. Gradients of float32 parameters stay float32, so that parameters can be
    kept in float32 while their gradients are computed in a half-precision dtype.

    Args:
      updates: tensors, `tf.IndexedSlices` or None.
      parameters: one variable per update.

    Returns:
      A list of the same structure and shapes.
    """

    def restored(update: Any, parameter: tf.Variable) -> Any:
        if parameter.dtype not in _HALVES:
            return update
        return _map(lambda x: tf.cast(x, parameter.dtype), update)

    return [restored(u, w) for u, w in zip(updates, parameters, strict=True)]


def clip(updates: Sequence[Any], max_norm: float) -> list[Any]:
    """Scales all gradients by one factor so that their global norm is at most `max_norm`.

    Rows of `tf.IndexedSlices` with equal indices are summed first, as they are when they are
    applied, so sparse and dense gradients have the same norm.

    Args:
      updates: tensors of one dtype, `tf.IndexedSlices` or None; not in half precision (see
        `widen`).
      max_norm: positive upper bound of the global L2 norm.

    Returns:
      A list of the same structure. All values are NaN if the norm is not finite.
    """
    merged = [merge_rows(update) for update in updates]
    return list(tf.clip_by_global_norm(merged, max_norm)[0])


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


def unscale(updates: Sequence[Any], scale: Any) -> list[Any]:
    """Divides every gradient by the loss scale.

    Args:
      updates: tensors, `tf.IndexedSlices` or None; not in half precision (see `widen`).
      scale: float32 scalar.

    Returns:
      A list of the same structure and dtypes.
    """
    return [_map(lambda x: x / tf.cast(scale, x.dtype), update) for update in updates]


def all_finite(updates: Sequence[Any]) -> tf.Tensor:
    """Returns a bool scalar: whether no gradient contains NaN or infinity."""
    tensors = [u.values if isinstance(u, tf.IndexedSlices) else u for u in updates]
    finite = [tf.reduce_all(tf.math.is_finite(x)) for x in tensors if x is not None]
    return tf.reduce_all(finite)


def _map(function: Callable[[tf.Tensor], tf.Tensor], update: Any) -> Any:
    """Applies `function` to a gradient's values; None stays None."""
    if update is None:
        return None
    if isinstance(update, tf.IndexedSlices):
        return tf.IndexedSlices(function(update.values), update.indices, update.dense_shape)
    return function(tf.convert_to_tensor(update))


class LossScaleGuard(tf.Module):
    """Counts skipped steps and adapts the loss scale to them.

    Micikevicius et al. 2018, section 3.2 (arXiv:1710.03740).

    Attributes:
      num_skipped: int64 scalar variable.
      scale: float32 scalar variable, or None if the loss scale is not dynamic.
    """

    def __init__(self, is_dynamic: bool):
        super().__init__(name="guard")
        self.num_skipped = tf.Variable(0, trainable=False, dtype=tf.int64, name="num_skipped")
        self.scale: tf.Variable | None = None
        if is_dynamic:
            self.scale = tf.Variable(INITIAL_SCALE, trainable=False, name="loss_scale")
            # Not int32, which a mesh of GPUs does not support.
            self.num_good = tf.Variable(0, trainable=False, dtype=tf.int64, name="num_good_steps")

    def update(self, finite: tf.Tensor) -> None:
        """Counts an update of the parameters.

        Args:
          finite: bool scalar, whether it was applied; the same on all replicas.
        """
        self.num_skipped.assign_add(tf.cast(tf.logical_not(finite), tf.int64))
        if self.scale is None:
            return
        # After a skipped update it stays negative until `adapt`, even if other updates are applied.
        skipped = tf.constant(-1, tf.int64)
        counted = tf.where(self.num_good < 0, skipped, self.num_good + 1)
        self.num_good.assign(tf.where(finite, counted, skipped))

    def adapt(self) -> None:
        """Adapts the loss scale. Called at the end of a step, whose losses share one scale."""
        if self.scale is None:
            return
        num_good = tf.identity(self.num_good)
        zero = tf.zeros([], tf.int64)
        skipped, grows = num_good < 0, num_good >= GROWTH_INTERVAL
        # It must stay finite in float32: halving an infinite scale would leave it infinite.
        doubled = self.scale * 2.0
        can_grow = tf.logical_and(grows, tf.math.is_finite(doubled))
        grown = tf.where(can_grow, doubled, tf.identity(self.scale))
        self.scale.assign(tf.where(skipped, tf.maximum(self.scale / 2.0, 1.0), grown))
        self.num_good.assign(tf.where(tf.logical_or(skipped, grows), zero, num_good))
