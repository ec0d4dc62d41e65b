"""Running normalisation of observations: every dimension with mean 0 and variance 1."""

from collections.abc import Iterable

import sonnet as snt
import tensorflow as tf

from rl_replicator import collectives

# Largest size of a normalised value. A sensor that has been constant so far may deviate by any
# number of its standard deviations.
_MAX = 10.0
# Added to the variance: a dimension that hardly ever changes is scaled up by at most 100.
_EPSILON = 1e-4
# Largest size of a value in the moments. The squares of larger ones may overflow float32, and then
# no later observation could make the variance finite again.
_MAX_IN_MOMENTS = 1e15


def merged_moments(mean, variance, count, batch_mean, batch_variance, batch_count):
    """Computes the moments of two merged samples from the moments of each.

    Chan et al. 1983, "Algorithms for computing the sample variance", in the form that does not
    cancel if the mean is large compared with the standard deviation:

        mean' = mean + delta m / (n + m)
        variance' = (n variance + m variance_m + delta**2 n m / (n + m)) / (n + m)

    with delta = mean_m - mean.

    Args:
      mean: [N] float32 of the n values seen so far.
      variance: [N] float32 of these, divided by n.
      count: int64 scalar n; may be 0.
      batch_mean: [N] float32 of m further values.
      batch_variance: [N] float32 of these, divided by m.
      batch_count: int64 scalar m, more than 0.

    Returns:
      As the first three arguments, of all n + m values.
    """
    total = count + batch_count
    share = tf.cast(batch_count / total, mean.dtype)
    delta = batch_mean - mean
    new_variance = (1 - share) * variance + share * batch_variance
    new_variance += tf.square(delta) * share * (1 - share)
    return mean + share * delta, new_variance, total


# It has variables, but none of them is trainable.
@snt.allow_empty_variables
class RunningNormalization(snt.Module):
    """An encoder of states: [B, N] float32 -> (x - mean) / standard deviation, clipped to +-10.

    The moments are those of all observations in the batches passed to `update`. They are variables
    that no optimizer trains: checkpoints hold them, and actors receive them with the weights.
    Before the first update, the encoder only clips.
    """

    def __init__(self, name: str = "encoder"):
        """Makes an encoder without variables; the first call makes them.

        Args:
          name: name of the module.
        """
        super().__init__(name=name)

    @snt.once
    def _build(self, size: int) -> None:
        self.mean = tf.Variable(tf.zeros([size]), trainable=False, name="mean")
        self.variance = tf.Variable(tf.ones([size]), trainable=False, name="variance")
        self.count = tf.Variable(0, dtype=tf.int64, trainable=False, name="count")

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> the same, normalised."""
        self._build(observation.shape[-1])
        normalised = (observation - self.mean) * tf.math.rsqrt(self.variance + _EPSILON)
        return tf.clip_by_value(normalised, -_MAX, _MAX)

    def update(self, observation: tf.Tensor) -> None:
        """Adds a batch to the moments. All replicas call it, with batches of equal size.

        Args:
          observation: [B, N] float32 of a replica's batch.
        """
        observation = tf.clip_by_value(observation, -_MAX_IN_MOMENTS, _MAX_IN_MOMENTS)
        mean = collectives.all_mean(tf.reduce_mean(observation, axis=0))  # [N]
        variance = collectives.all_mean(
            tf.reduce_mean(tf.square(observation - mean), axis=0)
        )  # [N], around the global mean.
        size = tf.shape(observation)[0] * collectives.num_replicas()
        new = merged_moments(
            self.mean, self.variance, self.count, mean, variance, tf.cast(size, tf.int64)
        )
        for variable, value in zip((self.mean, self.variance, self.count), new, strict=True):
            variable.assign(value)


def update_statistics(networks: Iterable[snt.Module], observation: tf.Tensor) -> None:
    """Adds a batch to the moments of the networks that normalise observations.

    Args:
      networks: built modules; those of other kinds are left unchanged.
      observation: [B, ...] of a replica's batch.
    """
    for network in networks:
        if isinstance(network, RunningNormalization):
            network.update(observation)
