"""A vector quantizer whose codebook follows the batches of all replicas."""

from typing import Any

import sonnet as snt
import tensorflow as tf

from rl_replicator import collectives
from rl_replicator.layers import statistics


class VectorQuantizerEMA(snt.nets.VectorQuantizerEMA):
    """`snt.nets.VectorQuantizerEMA` with moving averages of sums over all replicas.

    van den Oord et al. 2017 (arXiv:1711.00937), appendix A.1. N replicas with batches of B / N then
    have the codebook of one with a batch of B. Arguments, attributes and names of variables are
    Sonnet's. A step that a wrapped optimizer skips does not change the codebook.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        """Creates the codebook; the arguments are Sonnet's."""
        super().__init__(*args, **kwargs)
        zeros = tf.zeros([self.num_embeddings], self.embeddings.dtype)
        self.ema_cluster_size = _average_of_sums(self.decay, "ema_cluster_size", zeros)
        self.ema_dw = _average_of_sums(self.decay, "ema_dw", self.embeddings)
        statistics.declare([self.embeddings])


class _AverageOfSums(snt.ExponentialMovingAverage):
    """A moving average of the sums of values over all replicas, which is equal on all of them."""

    def update(self, value: tf.Tensor) -> None:
        if not tf.distribute.in_cross_replica_context():
            value = collectives.all_sum(value)
        super().update(value)


def _average_of_sums(decay: float, name: str, like: Any) -> _AverageOfSums:
    average = _AverageOfSums(decay, name=name)
    statistics.declare(snt.allow_empty_variables(average).variables)
    average.initialize(like)
    statistics.declare(average.variables)
    return average
