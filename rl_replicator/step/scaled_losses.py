"""Notes losses that a step divides by the number of replicas, whose gradients are to be summed."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from rl_replicator.collectives import call_log

# What divides a loss by the number of replicas, by its owner. `train_step` of a Keras model calls
# `compute_loss`.
_FUNCTIONS: tuple[tuple[Any, str, str], ...] = (
    (tf.keras.Model, "compute_loss", "tf.keras.Model.compute_loss"),
    (tf.nn, "compute_average_loss", "tf.nn.compute_average_loss"),
    (tf.nn, "scale_regularization_loss", "tf.nn.scale_regularization_loss"),
)
_LOCK = threading.RLock()


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Notes in the logs of the steps traced inside who divides a loss by the number of replicas.

    An optimizer that averages gradients would divide them once more: `Wrapped` refuses that.
    """
    with _LOCK, contextlib.ExitStack() as stack:
        for owner, attribute, name in _FUNCTIONS:
            original = getattr(owner, attribute)
            setattr(owner, attribute, _noting(original, name))
            stack.callback(setattr, owner, attribute, original)
        yield


def _noting(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @tf.autograph.experimental.do_not_convert
    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        log = call_log.enclosing()
        if log is not None:
            log.scaled_by = name
        return function(*args, **kwargs)

    return noting
