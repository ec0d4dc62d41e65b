"""The scale of MR.Q's values: the mean size of the rewards in the replay."""

import tensorflow as tf

from agents.learning.losses import importance_weights
from agents.replay.transitions import Sample
from rl_replicator import collectives


class RewardScale(tf.Module):
    """The mean of |r| over the replay table, by which values are divided.

    Fujimoto et al. 2025, equation 18. Batches are drawn by priority: their rewards are weighted by
    1 / P(i), over all draws of a period and all replicas.

    Attributes:
      online: float32 scalar, the scale of the critics.
      target: float32 scalar, that of the target critics.
    """

    def __init__(self, name: str = "reward_scale"):
        """Makes the variables; checkpoints hold them, and no optimizer trains them."""
        super().__init__(name=name)
        self.online, self.target = (
            tf.Variable(1.0, trainable=False, name=name) for name in ("online", "target")
        )
        self._sums = tf.Variable(tf.zeros([2]), trainable=False, name="sums")

    def add(self, sample: Sample, reward: tf.Tensor) -> None:
        """Adds a batch; all replicas call it.

        Args:
          sample: a batch of this replica.
          reward: [B] float32, the reward of the first step of each sequence.
        """
        weights = importance_weights(sample.probabilities, sample.table_size, 1.0)
        sums = tf.stack([tf.reduce_sum(weights * tf.abs(reward)), tf.reduce_sum(weights)])
        self._sums.assign_add(collectives.all_sum(sums))

    def renew(self) -> None:
        """Begins a period: the critics become the target critics, and take the newest mean.

        Without any reward, the scale stays as it is.
        """
        self.target.assign(self.online)
        mean = self._sums[0] / self._sums[1]
        self.online.assign(tf.where(mean > 0, mean, self.online))
        self._sums.assign(tf.zeros([2]))
