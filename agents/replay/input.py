"""The reading end of the replay: batches for each replica."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import reverb
import tensorflow as tf

from agents.replay.table import PREFETCHED_BATCHES, TABLE, LearnerDemand, draws_ahead
from agents.replay.transitions import Layout, Sample


def make_input_fn(
    server_addresses: Sequence[str], layout: Layout, demand: LearnerDemand
) -> Callable[[object], tf.data.Dataset]:
    """Makes the learner's `input_fn`: an endless dataset of per-replica batches.

    With several replay servers, the shards, every batch has equal parts of all of them, in the
    order of their addresses. Each shard draws by its own priorities; the probabilities and the
    table sizes of the samples are those among the items of all shards.

    If items have n transitions, n batches are made from B items, where B is the number of
    transitions in a batch. Each of the batches has one transition of every item, from a random
    place in it. So a batch is distributed as if its transitions were drawn independently of each
    other.

    Args:
      server_addresses: "host:port" of each replay server.
      layout: the layout of the items.
      demand: how much the learner takes at a time.

    Returns:
      A function from an `InputContext` to a dataset of `Sample`s.
    """
    length, num_shards = layout.transitions_per_item, len(server_addresses)
    batch_size = demand.of_shard(num_shards).per_replica_batch_size

    @tf.autograph.experimental.do_not_convert  # AutoGraph takes a second.
    def joined(*shards: reverb.ReplaySample) -> Sample:
        sample, size = shards[0], shards[0].info.table_size
        if num_shards > 1:
            sample = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *shards)
            total = tf.add_n([shard.info.table_size[-1] for shard in shards])
            size = tf.fill([num_shards * batch_size], total)
        return Sample(
            keys=sample.info.key,
            probabilities=sample.info.probability / (num_shards * length),
            table_size=size * length,
            transition=sample.data,
        )

    @tf.autograph.experimental.do_not_convert
    def batches(items: Sample) -> tf.data.Dataset:
        """Makes n batches of items; the order within each item begins at a random place."""
        start = tf.random.uniform([items.keys.shape[0]], maxval=length, dtype=tf.int32)
        places = (tf.range(length)[:, None] + start) % length  # [n, B]
        one_each = functools.partial(unpack, items)
        return tf.data.Dataset.from_tensor_slices(places).map(one_each)

    @tf.autograph.experimental.do_not_convert
    def unpack(items: Sample, places: tf.Tensor | None = None) -> Sample:
        return items._replace(transition=layout.unpack(items.transition, places))

    def input_fn(context: object) -> tf.data.Dataset:
        del context  # Every replica draws from all items.
        shards = [draw(a, layout.signature, batch_size, length) for a in server_addresses]
        draws = tf.data.Dataset.zip(tuple(shards))
        if length == 1:
            draws = draws.prefetch(PREFETCHED_BATCHES)
        # The functions run in the thread that asks for a batch.
        items = draws.map(joined)
        samples = items.map(unpack) if length == 1 else items.flat_map(batches)
        return samples.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    return input_fn


def draw(
    server_address: str, signature: Any, count: int, transitions_per_item: int
) -> tf.data.Dataset:
    """Draws items of a table, by the table's own selector.

    Args:
      server_address: "host:port" of the replay server.
      signature: nest of `tf.TensorSpec`, of the table's items.
      count: items in a draw.
      transitions_per_item: the number of transitions in an item of the table.

    Returns:
      An endless dataset of `reverb.ReplaySample`s of [count, ...] tensors.
    """
    dataset = reverb.TrajectoryDataset(
        server_address,
        TABLE,
        dtypes=tf.nest.map_structure(lambda spec: spec.dtype, signature),
        shapes=tf.nest.map_structure(lambda spec: spec.shape, signature),
        max_in_flight_samples_per_worker=draws_ahead(transitions_per_item) * count,
        num_workers_per_iterator=1,
    )
    return dataset.batch(count, drop_remainder=True)
