"""Losses of Keras and TensorFlow that depend on the number of replicas.

Keras' own losses are means over the replica's batch, which is correct for averaged gradients.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.utils import losses_utils

from rl_replicator import errors
from rl_replicator.collectives import call_log

# Functions that divide a loss by the number of replicas, as (owner, attribute, name).
_DIVIDING: tuple[tuple[Any, str, str], ...] = (
    (losses_utils, "scale_loss_for_distribution", "the loss of a compiled Keras model"),
    (tf.nn, "compute_average_loss", "tf.nn.compute_average_loss"),
    (tf.nn, "scale_regularization_loss", "tf.nn.scale_regularization_loss"),
)
_MEANS = (tf.keras.losses.Reduction.AUTO, tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE)
_LOCK = threading.RLock()


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Records the calls that divide a loss by the number of replicas, for steps traced inside.

    In these steps, objects of `tf.keras.losses` compute the mean, as on a single device. With
    several replicas, Keras itself refuses this, because it sums the gradients. Replaces functions
    of Keras and TensorFlow meanwhile, because neither offers another way.
    """
    with _LOCK, contextlib.ExitStack() as stack:

        def replace(owner: Any, attribute: str, make: Callable[[Any], Any]) -> None:
            original = getattr(owner, attribute)
            setattr(owner, attribute, functools.wraps(original)(make(original)))
            stack.callback(setattr, owner, attribute, original)

        for owner, attribute, name in _DIVIDING:
            replace(owner, attribute, functools.partial(_noting, name=name))
        replace(tf.keras.losses.Loss, "_get_reduction", _allowing_means)
        yield


def _noting(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @tf.autograph.experimental.do_not_convert
    def noting(*args: Any, **kwargs: Any) -> Any:
        log = call_log.enclosing()
        if log is not None:
            log.scaled_by.add(name)
        return function(*args, **kwargs)

    return noting


def _allowing_means(get_reduction: Callable[[Any], str]) -> Callable[[Any], str]:
    def allowing(self: Any) -> str:
        if self.reduction in _MEANS and call_log.enclosing() is not None:
            return tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE
        return get_reduction(self)

    return allowing


def check(log: call_log.CallLog) -> None:
    """Refuses a traced step that divides a loss by the number of replicas, and averages gradients.

    It is unknown which gradients belong to a divided loss. So a step that also sums some gradients,
    or reduces them itself, passes the check.

    Args:
      log: the log of the step.

    Raises:
      ConfigError: if the step is such a step.
    """
    if log.scaled_by and log.reductions == {"mean"}:
        raise errors.ConfigError(
            "expected a loss that is the mean over the replica's batch, because its gradients are "
            f"averaged, found {min(log.scaled_by)} in the step, which divides by the number of "
            'replicas; use wrap_optimizer(..., reduction="sum"), or tf.reduce_mean'
        )
