"""A queue in place of a replay: each item is taken once, the oldest first."""

from collections.abc import Callable, Sequence
from typing import Any

import reverb
import tensorflow as tf

from agents.replay.table import LearnerDemand, draw
from agents.replay.transitions import TABLE, Sample


def make_queue(size: int, demand: LearnerDemand, layout: Any, num_shards: int = 1) -> reverb.Table:
    """Makes the queue of a replay server. Inserts into a full queue wait.

    Args:
      size: items that may wait in the queues of all servers.
      demand: the demand of the learner.
      layout: the layout of the items, with a `signature`.
      num_shards: number of replay servers.

    Raises:
      ConfigError: if the servers do not divide the batch of a replica.
    """
    demand.of_shard(num_shards)
    return reverb.Table.queue(TABLE, -(-size // num_shards), signature=layout.signature)


def make_input_fn(
    server_addresses: Sequence[str], layout: Any, demand: LearnerDemand
) -> Callable[[object], tf.data.Dataset]:
    """Makes the learner's `input_fn`: an endless dataset of per-replica batches of items.

    Every batch has equal parts from all servers. A batch is requested when the one before is
    complete, so that little leaves the queue before its turn.

    Args:
      server_addresses: "host:port" of each replay server.
      layout: the layout of the items.
      demand: how many items the learner takes at a time.

    Returns:
      A function from an `InputContext` to a dataset of `Sample`s, without keys.
    """
    size = demand.of_shard(len(server_addresses)).per_replica_batch_size

    @tf.autograph.experimental.do_not_convert
    def joined(*drawn: reverb.ReplaySample) -> Sample:
        data = [each.data for each in drawn]
        return unpacked(layout, tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *data))

    def input_fn(context: object) -> tf.data.Dataset:
        del context  # Replicas take what comes next.
        length = layout.transitions_per_item
        drawn = [draw(one, layout.signature, size, length) for one in server_addresses]
        samples = tf.data.Dataset.zip(tuple(drawn)).map(joined)
        return samples.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    return input_fn


def unpacked(layout: Any, items: Any) -> Sample:
    """Returns a batch of items, as the layout unpacks them, without keys and probabilities."""
    return Sample(keys=(), probabilities=(), table_size=(), transition=layout.unpack(items))
