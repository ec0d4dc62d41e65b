"""Optimizers whose replicas apply the same, averaged gradients."""

from collections.abc import Sequence
from typing import Any

import sonnet as snt
import tensorflow as tf

from rl_replicator import collectives, errors


def average(updates: Sequence[Any]) -> list[Any]:
    """The mean over replicas of each gradient; None stays None.

    Args:
      updates: tensors, `tf.IndexedSlices` or None; every replica must have None at the same places.
    """
    return collectives.all_mean(list(updates))


def clip(updates: Sequence[Any], max_norm: float) -> list[Any]:
    """Scales all gradients together so that their global norm is at most `max_norm`."""
    return tf.clip_by_global_norm(list(updates), max_norm)[0]


class _Wrapped:
    """Mixed in before the class of a Sonnet optimizer."""

    _max_global_norm: float | None

    def apply(self, updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
        updates = average(updates)
        if self._max_global_norm is not None:
            updates = clip(updates, self._max_global_norm)
        super().apply(updates, parameters)  # type: ignore[misc]


def wrap(optimizer: Any, num_replicas: int, max_global_norm: float | None) -> Any:
    """See `Replicator.wrap_optimizer`."""
    if not isinstance(optimizer, snt.Optimizer):
        raise errors.ConfigError(
            f"expected a Sonnet optimizer, got {type(optimizer).__name__}; "
            "use one of snt.optimizers or rr.optimizers"
        )
    if isinstance(optimizer, _Wrapped):
        raise errors.ConfigError(
            f"expected an optimizer that is not wrapped yet, got {type(optimizer).__name__}; "
            "call wrap_optimizer once"
        )
    if max_global_norm is not None and not max_global_norm > 0:
        raise errors.ConfigError(
            f"expected max_global_norm above 0, got {max_global_norm}; use None not to clip"
        )
    if num_replicas > 1 or max_global_norm is not None:
        kind: Any = type(optimizer)
        make_class: Any = type(kind)
        # A subclass, not a wrapper around it: the object keeps its attributes and its place in
        # checkpoints, whatever the number of replicas.
        body = {"_max_global_norm": max_global_norm}
        optimizer.__class__ = make_class(kind.__name__, (_Wrapped, kind), body)
    return optimizer


def build(optimizer: Any, parameters: Sequence[tf.Variable]) -> None:
    """See `Replicator.build_optimizer`."""
    initialize = getattr(optimizer, "_initialize", None)
    if initialize is not None:  # Stateless optimizers, such as SGD, have nothing to build.
        initialize(parameters)
