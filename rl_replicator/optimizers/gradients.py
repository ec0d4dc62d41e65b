"""What is done to gradients before they are applied: options, arithmetic, and its state."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from sonnet.src.optimizers import optimizer_utils as snt_utils

from rl_replicator import errors

REDUCTIONS = ("mean", "sum")
# The dynamic loss scale begins here, is halved by every step that is skipped, and doubled after so
# many in a row that are not.
INITIAL_SCALE = 2.0**15
GROWTH_INTERVAL = 2000


@dataclasses.dataclass(frozen=True)
class Options:
    """What is done to the gradients before they are applied. See `Replicator.wrap_optimizer`.

    Raises:
      ConfigError: an option that cannot be used.
    """

    reduction: str = "mean"
    max_global_norm: float | None = None
    loss_scale: float | str | None = None
    skip_nonfinite: bool = False

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise errors.ConfigError(
                f"expected a reduction out of {', '.join(REDUCTIONS)}, got {self.reduction!r}; "
                "use one of them"
            )
        if self.max_global_norm is not None and not self.max_global_norm > 0:
            raise errors.ConfigError(
                f"expected max_global_norm above 0, got {self.max_global_norm}; "
                "use None not to clip"
            )
        scale = self.loss_scale
        is_number = isinstance(scale, (int, float)) and 0 < scale < float("inf")
        if not (scale is None or scale == "dynamic" or is_number):
            raise errors.ConfigError(
                f'expected a loss_scale above 0, "dynamic" or None, got {scale!r}; use one of them'
            )

    @property
    def is_dynamic(self) -> bool:
        return self.loss_scale == "dynamic"

    @property
    def skips(self) -> bool:
        """Whether gradients are looked through; a dynamic scale lives of those that are not."""
        return self.skip_nonfinite or self.is_dynamic


def clip(updates: Sequence[Any], max_norm: float) -> list[Any]:
    """Scales all gradients together so that their global norm is at most `max_norm`.

    Rows of `tf.IndexedSlices` that belong to one index are added up first, as they will be when
    they are applied: so sparse and dense gradients have the same norm. None stays None.
    """
    return tf.clip_by_global_norm([_merged(update) for update in updates], max_norm)[0]


def unscale(updates: Sequence[Any], scale: Any) -> list[Any]:
    """Divides every gradient, in its own dtype, by `scale`; None stays None."""

    def divided(x: tf.Tensor) -> tf.Tensor:
        return x / tf.cast(scale, x.dtype)

    return [
        tf.IndexedSlices(divided(update.values), update.indices, update.dense_shape)
        if isinstance(update, tf.IndexedSlices)
        else (None if update is None else divided(update))
        for update in updates
    ]


def all_finite(updates: Sequence[Any]) -> tf.Tensor:
    """Whether there is no infinity and no NaN in any gradient, a bool scalar."""
    tensors = [u.values if isinstance(u, tf.IndexedSlices) else u for u in updates]
    finite = [tf.reduce_all(tf.math.is_finite(x)) for x in tensors if x is not None]
    return tf.reduce_all(finite)


def _merged(update: Any) -> Any:
    if not isinstance(update, tf.IndexedSlices):
        return update
    values, indices = snt_utils.deduplicate_indexed_slices(update)
    return tf.IndexedSlices(values, indices, update.dense_shape)


class Guard(tf.Module):
    """Counts the steps that are skipped, and adapts the loss scale to them.

    Micikevicius et al. 2018, section 3.2 (arXiv:1710.03740).
    """

    def __init__(self, is_dynamic: bool):
        super().__init__(name="guard")
        self.num_skipped = tf.Variable(0, trainable=False, dtype=tf.int64, name="num_skipped")
        self.scale: tf.Variable | None = None
        if is_dynamic:
            self.scale = tf.Variable(INITIAL_SCALE, trainable=False, name="loss_scale")
            self.num_good = tf.Variable(0, trainable=False, name="num_good_steps")

    def update(self, finite: tf.Tensor) -> None:
        """After a step; `finite` is a bool scalar, the same on all replicas."""
        self.num_skipped.assign_add(tf.cast(tf.logical_not(finite), tf.int64))
        if self.scale is None:
            return
        num_good = tf.where(finite, self.num_good + 1, 0)
        grows = tf.equal(num_good, GROWTH_INTERVAL)
        grown = tf.where(grows, self.scale * 2.0, tf.identity(self.scale))
        self.scale.assign(tf.where(finite, grown, tf.maximum(self.scale / 2.0, 1.0)))
        self.num_good.assign(tf.where(grows, 0, num_good))
