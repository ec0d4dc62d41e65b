"""Random numbers inside a replicated step, equal for every number of replicas.

A replica draws for the whole global batch and takes its own part, so that N replicas with batches
of B / N draw exactly what one replica with a batch of B draws. A mesh is one replica, but DTensor
may draw other numbers: each device draws its part of the batch from its own seed.

    step_seed = rr.randomness.StepSeeds()                       # in the learner's constructor
    noise = rr.randomness.normal([B, 8], step_seed(step, 0))    # in its step
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rl_replicator.collectives import sums


class StepSeeds:
    """The seeds of all randomness in the steps of one learner.

    They differ between runs with different seeds: the constructor draws a number after
    `tf.random.set_seed`. Workers that train together need the same seed, as the workers of a run
    have; otherwise each of them draws different numbers.
    """

    def __init__(self) -> None:
        """Draws the number that all seeds of this learner share."""
        self._key = int(tf.random.uniform([], maxval=tf.int32.max, dtype=tf.int32))

    def __call__(self, step: tf.Tensor, stream: int) -> tf.Tensor:
        """Returns the seed for one use of randomness in one learner step.

        Args:
          step: learner steps done, an integer scalar.
          stream: number of the use within the step.

        Returns:
          [2] int32, equal on all replicas.
        """
        return tf.stack([tf.cast(step, tf.int32), tf.constant(self._key ^ stream, tf.int32)])


def normal(shape: Sequence[Any], seed: tf.Tensor) -> tf.Tensor:
    """Draws from the standard normal distribution.

    Args:
      shape: the shape of the result, [B, ...]; B is the replica's batch size.
      seed: [2] int32, equal on all replicas.

    Returns:
      float32 of shape `shape`.
    """
    return _own_part(tf.random.stateless_normal(_global(shape), seed), shape)


def uniform_integers(shape: Sequence[Any], low: int, high: int, seed: tf.Tensor) -> tf.Tensor:
    """Draws integers uniformly.

    Args:
      shape: the shape of the result, [B, ...]; B is the replica's batch size.
      low: the lowest integer.
      high: one more than the highest.
      seed: [2] int32, equal on all replicas.

    Returns:
      int32 of shape `shape`.
    """
    drawn = tf.random.stateless_uniform(_global(shape), seed, low, high, tf.int32)
    return _own_part(drawn, shape)


def _global(shape: Sequence[Any]) -> list[Any]:
    return [shape[0] * sums.num_replicas(), *shape[1:]]


def _own_part(drawn: tf.Tensor, shape: Sequence[Any]) -> tf.Tensor:
    start = shape[0] * sums.replica_id()
    # Not drawn[start:...]: DTensor does not support slicing by the values of tensors.
    return tf.slice(drawn, [start, *[0] * (len(shape) - 1)], shape)
