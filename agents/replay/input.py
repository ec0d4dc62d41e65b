"""The reading end of the replay: batches for each replica."""

from collections.abc import Callable

import reverb
import tensorflow as tf

from agents.replay.table import IN_FLIGHT_BATCHES, PREFETCHED_BATCHES, TABLE, LearnerDemand
from agents.replay.transitions import Layout, Sample


def make_input_fn(
    server_address: str, layout: Layout, demand: LearnerDemand
) -> Callable[[object], tf.data.Dataset]:
    """Makes the learner's `input_fn`: an endless dataset of per-replica batches.

    Args:
      server_address: "host:port" of the replay server.
      layout: of the items.
      demand: how much the learner takes at a time.

    Returns:
      A function from an `InputContext` to a dataset of `Sample`s.
    """

    @tf.autograph.experimental.do_not_convert  # It takes a second to find nothing to convert.
    def unpack(sample: reverb.ReplaySample) -> Sample:
        return Sample(
            keys=sample.info.key,
            probabilities=sample.info.probability,
            table_size=sample.info.table_size,
            transition=layout.unpack(sample.data),
        )

    def input_fn(context) -> tf.data.Dataset:
        del context  # Every replica draws from the whole table.
        batch_size = demand.per_replica_batch_size
        dataset = reverb.TrajectoryDataset(
            server_address,
            TABLE,
            dtypes=tf.nest.map_structure(lambda s: s.dtype, layout.signature),
            shapes=tf.nest.map_structure(lambda s: s.shape, layout.signature),
            max_in_flight_samples_per_worker=IN_FLIGHT_BATCHES * batch_size,
            num_workers_per_iterator=1,
        )
        return (
            dataset.batch(batch_size, drop_remainder=True)
            .map(unpack, num_parallel_calls=1, deterministic=True)
            .prefetch(PREFETCHED_BATCHES)
            .apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        )

    return input_fn
