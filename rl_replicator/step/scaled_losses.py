"""Losses whose gradients depend on the number of replicas.

Keras' own losses are means over the replica's batch, which is correct for averaged gradients. Some
of Keras' and TensorFlow's functions divide by the number of replicas. And the gradient of a loss
that is no scalar is that of its sum.
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
    """Records such losses of the steps that are traced inside.

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
        replace(tf.GradientTape, "gradient", _noting_sums)
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


def _noting_sums(gradient: Callable[..., Any]) -> Callable[..., Any]:
    @tf.autograph.experimental.do_not_convert
    def noting(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        log = call_log.enclosing()
        trains = all(isinstance(x, tf.Variable) for x in tf.nest.flatten(sources))
        if log is not None and output_gradients is None and trains:
            shapes = [x.shape for x in tf.nest.flatten(target)]
            log.sums.update(str(x) for x in shapes if x.rank and x.num_elements() != 1)
        return gradient(self, target, sources, output_gradients, *args, **kwargs)

    return noting


def check(log: call_log.CallLog, num_replicas: int) -> None:
    """Refuses a traced step that averages gradients of a loss that is divided, or is no scalar.

    It is unknown which gradients belong to such a loss. So a step that also sums some gradients, or
    reduces them itself, passes the check. On a single replica, a sum is what it is.

    Args:
      log: the log of the step.
      num_replicas: number of replicas in all processes.

    Raises:
      ConfigError: if the step is such a step.
    """
    if log.reductions != {"mean"}:
        return
    if log.sums and num_replicas > 1:
        raise errors.ConfigError(
            "expected a scalar loss, the mean over the replica's batch, because its gradients are "
            f"averaged, got one of shape {min(log.sums)}, whose gradient is that of the sum; use "
            "tf.reduce_mean"
        )
    if log.scaled_by:
        raise errors.ConfigError(
            "expected a loss that is the mean over the replica's batch, because its gradients are "
            f"averaged, found {min(log.scaled_by)} in the step, which divides by the number of "
            'replicas; use wrap_optimizer(..., reduction="sum"), or tf.reduce_mean'
        )
