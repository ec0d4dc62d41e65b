"""Rewards in units of the spread of the returns, for critics whose values must stay in a range."""

from typing import Any

import tensorflow as tf

import rl_replicator as rr
from agents.networks.encoders import RunningNormalization

# The largest absolute value of a scaled return.
BOUND = 5.0
# Before the first reward, all returns are 0.
_LEAST = 1e-8


def unscaled(extras: Any, valid: tf.Tensor | None = None) -> tf.Tensor:
    """Returns 1, the scale of rewards that are left as they are."""
    del extras, valid
    return tf.ones([])


def metrics(of_extras: Any, scale: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the scale as a metric, if rewards are scaled.

    Args:
      of_extras: `unscaled` or a `ReturnScale`.
      scale: its result.
    """
    return {} if of_extras is unscaled else {"return_scale": scale}


class ReturnScale(tf.Module):
    """The spread of the returns seen so far, by which rewards are divided.

    Lee et al. 2025 (SimbaV2, arXiv:2502.15280), section 4.3: the standard deviation of G_t, the
    discounted rewards of an episode so far, but at least max |G_t| / 5. Here, the moments are those
    of the batches drawn from the replay, over all replicas.
    """

    def __init__(self, name: str = "return_scale"):
        """Makes the variables; checkpoints hold them, and no optimizer trains them."""
        super().__init__(name=name)
        self._moments = RunningNormalization("returns")
        self._moments(tf.zeros([1, 1]))  # Makes its variables.
        self._highest = tf.Variable(0.0, trainable=False, name="highest")

    def __call__(self, returns: tf.Tensor, valid: tf.Tensor | None = None) -> tf.Tensor:
        """Adds a batch; all replicas call it.

        Args:
          returns: [B] float32, G_t of a replica's batch.
          valid: [B] float32, 1 for those that count, at least one; None for all.

        Returns:
          A positive scalar, equal on all replicas.
        """
        self._moments.update(returns[:, tf.newaxis], valid)
        known = returns if valid is None else valid * returns
        highest = rr.collectives.all_max(tf.reduce_max(tf.abs(known)))
        self._highest.assign(tf.maximum(self._highest, highest))
        deviation = tf.sqrt(self._moments.variance[0])
        return tf.maximum(tf.maximum(deviation, self._highest / BOUND), _LEAST)
