"""The reading end of the replay: batches for each replica."""

from collections.abc import Callable, Sequence

import reverb
import tensorflow as tf

from agents.replay.table import IN_FLIGHT_BATCHES, PREFETCHED_BATCHES, TABLE, LearnerDemand
from agents.replay.transitions import Layout, Sample


def make_input_fn(
    server_addresses: Sequence[str], layout: Layout, demand: LearnerDemand
) -> Callable[[object], tf.data.Dataset]:
    """Makes the learner's `input_fn`: an endless dataset of per-replica batches.

    With several replay servers, the shards, every batch has equal parts of all of them, in the
    order of their addresses. Each shard draws by its own priorities; the probabilities and the
    table sizes of the samples are those among the items of all shards.

    Args:
      server_addresses: "host:port" of each replay server.
      layout: of the items.
      demand: how much the learner takes at a time.

    Returns:
      A function from an `InputContext` to a dataset of `Sample`s.
    """

    batch_size = demand.of_shard(len(server_addresses)).per_replica_batch_size

    @tf.autograph.experimental.do_not_convert  # It takes a second to find nothing to convert.
    def unpack(*shards: reverb.ReplaySample) -> Sample:
        sample, size = shards[0], shards[0].info.table_size
        if len(shards) > 1:
            sample = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *shards)
            total = tf.add_n([shard.info.table_size[-1] for shard in shards])
            size = tf.fill([len(shards) * batch_size], total)
        return Sample(
            keys=sample.info.key,
            probabilities=sample.info.probability / len(shards),
            table_size=size,
            transition=layout.unpack(sample.data),
        )

    def from_server(address: str) -> tf.data.Dataset:
        dataset = reverb.TrajectoryDataset(
            address,
            TABLE,
            dtypes=tf.nest.map_structure(lambda s: s.dtype, layout.signature),
            shapes=tf.nest.map_structure(lambda s: s.shape, layout.signature),
            max_in_flight_samples_per_worker=IN_FLIGHT_BATCHES * batch_size,
            num_workers_per_iterator=1,
        )
        return dataset.batch(batch_size, drop_remainder=True)

    def input_fn(context) -> tf.data.Dataset:
        del context  # Every replica draws from all items.
        return (
            tf.data.Dataset.zip(tuple(from_server(address) for address in server_addresses))
            .prefetch(PREFETCHED_BATCHES)
            .map(unpack)  # In the thread that asks for the batch, while the next one is built.
            .apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        )

    return input_fn
