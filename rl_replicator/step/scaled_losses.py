"""Finds losses that do not match how a step reduces its gradients: by the mean, or by the sum.

Keras' own losses are means over the replica's batch, which is correct for averaged gradients.
"""

import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.utils import losses_utils

from rl_replicator import errors
from rl_replicator.collectives import call_log, collectives

_COMPILED = "the loss of a compiled Keras model"
# Functions that divide a loss by the number of replicas, as (owner, attribute, name).
_FUNCTIONS: tuple[tuple[Any, str, str], ...] = (
    (losses_utils, "scale_loss_for_distribution", _COMPILED),
    (tf.nn, "compute_average_loss", "tf.nn.compute_average_loss"),
    (tf.nn, "scale_regularization_loss", "tf.nn.scale_regularization_loss"),
)
_MEANS = (tf.keras.losses.Reduction.AUTO, tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE)
_LOCK = threading.RLock()
# The argument of `masked_means`, for the replica that is being traced.
_EXAMPLES: contextvars.ContextVar[tf.Tensor | None] = contextvars.ContextVar(
    "examples", default=None
)


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Records the calls that divide a loss by the number of replicas, for steps traced inside.

    In these steps, objects of `tf.keras.losses` compute the mean, as on a single device. With
    several replicas, Keras itself refuses this, because it sums the gradients.
    """
    with _LOCK, contextlib.ExitStack() as stack:

        def replace(owner: Any, attribute: str, make: Callable[[Any], Any]) -> None:
            original = getattr(owner, attribute)
            setattr(owner, attribute, make(original))
            stack.callback(setattr, owner, attribute, original)

        for owner, attribute, name in _FUNCTIONS:
            replace(owner, attribute, functools.partial(_noting, name=name))
        replace(tf.keras.losses.Loss, "_get_reduction", _allowing_means)
        replace(losses_utils, "apply_valid_mask", _counting_all_valid)
        yield


def _noting(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        _note(name)
        return function(*args, **kwargs)

    return noting


def _allowing_means(get_reduction: Callable[[Any], str]) -> Callable[[Any], str]:
    @functools.wraps(get_reduction)
    def allowing(self: Any) -> str:
        log = call_log.enclosing()
        if self.reduction in _MEANS and log is not None:
            # The losses of compiled models are divided by the number of replicas afterwards.
            log.has_keras_mean |= not self._allow_sum_over_batch_size
            return tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE
        return get_reduction(self)

    return allowing


@contextlib.contextmanager
def masked_means(examples: tf.Tensor) -> Iterator[None]:
    """Makes masked Keras losses divide by the number of valid entries of all replicas.

    Keras divides by the number of valid entries in the replica's batch, which differs between
    replicas. In this context, the mean of the replicas' losses, weighted by their numbers of
    examples, is the loss of all examples; it is 0 if there are no valid entries.

    Args:
      examples: float32 scalar, number of the replica's examples that count; if it is 0, none of the
        replica's entries are valid.
    """
    token = _EXAMPLES.set(examples)
    try:
        yield
    finally:
        _EXAMPLES.reset(token)


def _counting_all_valid(apply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply)
    def counting(losses: Any, weights: Any, mask: Any, reduction: str) -> Any:
        examples = _EXAMPLES.get()
        if examples is None or mask is None or reduction not in _MEANS:
            return apply(losses, weights, mask, reduction)
        # Not in the loss' own dtype, because the largest float16 is 65504.
        mask = tf.cast(mask, tf.float32)
        valid = tf.reduce_sum(mask) * tf.cast(examples > 0, tf.float32)
        valid, all_examples = tf.unstack(collectives.all_sum(tf.stack([valid, examples])))
        own = tf.math.divide_no_nan(valid * examples, all_examples)
        mask *= tf.math.divide_no_nan(tf.cast(tf.size(mask), tf.float32), own)
        # With this reduction, Keras does not change the mask.
        return apply(losses, weights, mask, tf.keras.losses.Reduction.SUM)

    return counting


@tf.autograph.experimental.do_not_convert
def _note(name: str) -> None:
    log = call_log.enclosing()
    if log is not None:
        log.scaled_by.add(name)


def check(log: call_log.CallLog) -> None:
    """Checks a step that has been traced.

    It is unknown which gradients belong to a divided loss. So a step that also sums some gradients,
    or reduces them itself, passes the check.

    Args:
      log: the log of the step.

    Raises:
      ConfigError: if a loss is divided by the number of replicas and all gradients are averaged;
        or if Keras takes the mean over a replica's batch and all gradients are summed.
    """
    if log.scaled_by and log.reductions == {"mean"}:
        raise errors.ConfigError(
            "expected a loss that is the mean over the replica's batch, because its gradients are "
            f"averaged, found {min(log.scaled_by)} in the step, which divides by the number of "
            'replicas; use wrap_optimizer(..., reduction="sum"), or tf.reduce_mean'
        )
    if log.has_keras_mean and not log.scaled_by and log.reductions == {"sum"}:
        raise errors.ConfigError(
            "expected a loss whose gradients may be summed over the replicas, found an object of "
            "tf.keras.losses that takes the mean over the replica's batch; leave "
            'reduction="sum" out of wrap_optimizer'
        )
