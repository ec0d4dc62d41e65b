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


class _Averaging:
    """Mixed in before the class of a Sonnet optimizer."""

    def apply(self, updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
        super().apply(average(updates), parameters)  # type: ignore[misc]


def wrap(optimizer: Any, num_replicas: int) -> Any:
    """See `Replicator.wrap_optimizer`."""
    if not isinstance(optimizer, snt.Optimizer):
        raise errors.ConfigError(
            f"expected a Sonnet optimizer, got {type(optimizer).__name__}; "
            "use one of snt.optimizers or rr.optimizers"
        )
    if isinstance(optimizer, _Averaging):
        raise errors.ConfigError(
            f"expected an optimizer that is not wrapped yet, got {type(optimizer).__name__}; "
            "call wrap_optimizer once"
        )
    if num_replicas > 1:
        kind = type(optimizer)
        # A subclass, not a wrapper around it: the object keeps its attributes and its place in
        # checkpoints, whatever the number of replicas.
        optimizer.__class__ = type(kind)(kind.__name__, (_Averaging, kind), {})
    return optimizer
