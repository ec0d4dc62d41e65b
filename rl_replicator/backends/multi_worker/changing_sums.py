"""Sums over the replicas of a group, of vectors whose length changes from step to step."""

import collections

import tensorflow as tf

from rl_replicator.collectives import sums

# One key for each width; widths are powers of two.
_KEYS_OF_A_SUM = 32


class ChangingSums:
    """Sums vectors, such as the rows of sparse gradients, inside of traced steps.

    TensorFlow binds the key of a collective to the shape of its first message. So a vector is
    padded to the next power of two, and sent under the key of that width.
    """

    def __init__(self, group_key: int, strategy: tf.distribute.Strategy):
        """Registers itself for the steps of a strategy.

        Args:
          group_key: TensorFlow's group key of these collectives, equal in all processes.
          strategy: strategy of the replicas.
        """
        self._group_key = group_key
        self._next_keys: dict[int, int] = collections.defaultdict(int)
        sums.sum_changing_with(strategy, self.total)

    def number(self, first: int) -> None:
        """Sets the key of the next sum traced on each replica; the keys of later sums increase."""
        self._next_keys = collections.defaultdict(lambda: first)

    def total(self, x: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        """Sums a vector over replicas. Call it on a replica while a step is traced.

        Args:
          x: [length] float32, float64 or int64.
          length: int32 scalar, equal on all replicas.

        Returns:
          The sum, [length].
        """
        replica = int(tf.get_static_value(sums.replica_id()))
        first_key = self._next_keys[replica]
        self._next_keys[replica] += _KEYS_OF_A_SUM
        # The number of powers of two below the length is its binary logarithm, rounded up.
        exponent = tf.reduce_sum(tf.cast(length > [1 << i for i in range(31)], tf.int32))
        added = tf.raw_ops.CollectiveReduceV2(
            input=tf.pad(x, [[0, tf.bitwise.left_shift(1, exponent) - length]]),
            group_size=sums.num_replicas(),
            group_key=self._group_key,
            instance_key=first_key + exponent,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            # NCCL would require one order of these and the strategy's own collectives.
            communication_hint="ring",
        )
        return added[:length]
