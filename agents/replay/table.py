"""The replay table, its ratio of samples to inserts, and the batches drawn from it; a queue."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import reverb
import tensorflow as tf

from agents.replay.config import ReplayConfig
from agents.replay.transitions import RECORDED, TABLE, Layout, Sample
from rl_replicator.errors import ConfigError, check_option

# Batches that a sampler may request ahead.
_BATCHES_AHEAD = 2
# Batches that the input pipeline holds ready, unless it has several of one draw.
PREFETCHED_BATCHES = 2
# Two queued for the step, and one on its way there.
_BATCHES_BEHIND = 3
# Transitions by which actors may be ahead of the learner, or behind, unless more are needed. Those
# by which they are ahead at the end are never trained on.
_MOST_AHEAD = 100


def draws_ahead(transitions_per_item: int) -> int:
    """Returns how many draws a sampler may request ahead.

    A draw has one item per transition of a batch; it serves `transitions_per_item` batches.
    """
    return -(-_BATCHES_AHEAD // transitions_per_item)


@dataclasses.dataclass(frozen=True)
class LearnerDemand:
    """How many transitions the learner takes at a time.

    Attributes:
      global_batch_size: transitions of one learner step, over all replicas.
      steps_per_call: learner steps in one compiled call.
      num_replicas: number of replicas, each with an input pipeline for its share of the batch.
    """

    global_batch_size: int
    steps_per_call: int
    num_replicas: int

    def __post_init__(self) -> None:
        """Raises ConfigError if the replicas do not divide the batch."""
        check_option(
            self.global_batch_size % self.num_replicas == 0,
            "agent.global_batch_size",
            f"a multiple of {self.num_replicas} replicas",
            self.global_batch_size,
        )

    @property
    def per_replica_batch_size(self) -> int:
        """Transitions of one replica's batch."""
        return self.global_batch_size // self.num_replicas

    def of_shard(self, num_shards: int) -> "LearnerDemand":
        """Returns what the learner takes from each of several tables: equal parts of every batch.

        Args:
          num_shards: number of tables.

        Raises:
          ConfigError: if the tables do not divide the batch of a replica.
        """
        check_option(
            self.per_replica_batch_size % num_shards == 0,
            "agent.global_batch_size",
            f"a multiple of {self.num_replicas * num_shards} ({self.num_replicas} replicas x "
            f"{num_shards} replay shards)",
            self.global_batch_size,
        )
        return dataclasses.replace(self, global_batch_size=self.global_batch_size // num_shards)

    @property
    def transitions_per_call(self) -> int:
        """Transitions that one compiled call consumes."""
        return self.global_batch_size * self.steps_per_call

    def transitions_in_flight(self, transitions_per_item: int) -> int:
        """Most transitions that the input pipelines can hold beyond those that a call consumed.

        Args:
          transitions_per_item: the number of transitions in an item of the table.
        """
        draws = draws_ahead(transitions_per_item) + 1  # One is being built or given out.
        ready = PREFETCHED_BATCHES if transitions_per_item == 1 else 0
        held = draws * transitions_per_item + ready + _BATCHES_BEHIND
        return held * self.global_batch_size


class BatchPart(NamedTuple):
    """The part of every batch of a replica that comes from one table.

    Attributes:
      server: position of the replay server.
      table: name of its table.
      size: number of transitions.
    """

    server: int
    table: str
    size: int


def batch_parts(batch_size: int, num_shards: int, online_fraction: float) -> list[BatchPart]:
    """Divides the batch of a replica among all tables, in the order in which it holds them.

    Args:
      batch_size: transitions of the batch.
      num_shards: number of replay servers; each gives an equal share of every part.
      online_fraction: share of the run's own transitions; the rest is recorded. It is rounded to
        whole transitions of each server.

    Raises:
      ConfigError: if there is no transition of one of the two.
    """
    of_shard = batch_size // num_shards
    online = round(online_fraction * of_shard)
    check_option(
        online > 0 and (online < of_shard or online_fraction == 1),
        "online_fraction",
        f"a fraction of the {of_shard} transitions that a replica takes from a server at a time",
        online_fraction,
    )
    servers = range(num_shards)
    parts = [BatchPart(server, TABLE, online) for server in servers]
    if online < of_shard:
        parts += [BatchPart(server, RECORDED, of_shard - online) for server in servers]
    return parts


def make_tables(
    config: ReplayConfig,
    demand: LearnerDemand,
    layout: Layout,
    num_shards: int = 1,
    online_fraction: float = 1.0,
) -> list[reverb.Table]:
    """Makes the tables of a replay server: of the run's own transitions, and of recorded ones.

    The learner takes as many steps for each of the run's own transitions as without the second
    table, so the first is sampled less often.

    Args:
      config: the config of the replay.
      demand: the demand of the learner.
      layout: the layout of the items.
      num_shards: number of replay servers.
      online_fraction: see `batch_parts`; 1 makes no second table.

    Raises:
      ConfigError: if config, demand and fraction do not fit each other.
    """
    of_replica = demand.of_shard(num_shards).per_replica_batch_size * num_shards
    parts = batch_parts(of_replica, num_shards, online_fraction)
    if len(parts) == num_shards:
        return [make_table(config, demand, layout, num_shards)]
    online = num_shards * parts[0].size
    own = dataclasses.replace(
        config, samples_per_insert=config.samples_per_insert * online / of_replica
    )
    of_own = dataclasses.replace(demand, global_batch_size=demand.num_replicas * online)
    recorded = reverb.Table(
        name=RECORDED,
        sampler=_selector(config),
        remover=reverb.selectors.Fifo(),
        max_size=-(-config.of_shard(num_shards).max_size // layout.transitions_per_item),
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=layout.signature,
    )
    return [make_table(own, of_own, layout, num_shards), recorded]


def _selector(config: ReplayConfig) -> Any:
    if config.priority_exponent > 0:
        return reverb.selectors.Prioritized(config.priority_exponent)
    return reverb.selectors.Uniform()


def error_buffer(
    config: ReplayConfig, demand: LearnerDemand, transitions_per_item: int, num_shards: int = 1
) -> float:
    """Computes the tolerance of a table's limiter, in sampled transitions, in either direction.

    It must cover a whole call of the learner plus everything its pipelines keep in flight, twice:
    otherwise actors and learner could only run in turns, or (below the samples of one insert) block
    each other forever.

    Args:
      config: the config of the replay.
      demand: the demand of the learner.
      transitions_per_item: the number of transitions in an item of the table.
      num_shards: number of tables that share the transitions evenly.

    Returns:
      The buffer of each table in sampled transitions.

    Raises:
      ConfigError: if the tables start with too few rows for that buffer, or do not divide a batch.
    """
    table, part = config.of_shard(num_shards), demand.of_shard(num_shards)
    in_flight = part.transitions_in_flight(transitions_per_item)
    buffer = max(
        min(0.1 * table.min_size, _MOST_AHEAD) * table.samples_per_insert,
        2.0 * (part.transitions_per_call + in_flight),
        2.0 * table.samples_per_insert * transitions_per_item,
    )
    if buffer > table.min_size * table.samples_per_insert:
        needed_each = int(-(-buffer // table.samples_per_insert))
        needed = (needed_each - 1) * num_shards + 1  # The share of a table is rounded up.
        others = ["--agent.steps-per-call"]
        if transitions_per_item > 1:
            others.append("--agent.replay.transitions-per-item")
        if num_shards > 1:
            others.append("--replay-shards")
        raise ConfigError(
            f"--agent.replay.min-size: expected at least {needed} (a call of the learner takes "
            f"{demand.transitions_per_call} transitions and its input holds "
            f"{in_flight * num_shards} more, at {config.samples_per_insert:g} samples per insert; "
            f"and a table needs two items), got {config.min_size}; raise it, or lower "
            f"{' or '.join(others)}"
        )
    return buffer


def make_table(
    config: ReplayConfig, demand: LearnerDemand, layout: Layout, num_shards: int = 1
) -> reverb.Table:
    """Makes the table: prioritized (Schaul et al. 2016) or uniform, with a rate limiter.

    Args:
      config: the config of the replay.
      demand: the demand of the learner, for the limiter's tolerance.
      layout: the layout of the items.
      num_shards: number of tables that share the transitions evenly.

    Returns:
      A table to be served by one Reverb server.

    Raises:
      ConfigError: if config and demand would block each other.
    """
    length, table = layout.transitions_per_item, config.of_shard(num_shards)
    return reverb.Table(
        name=TABLE,
        sampler=_selector(config),
        remover=reverb.selectors.Fifo(),
        max_size=-(-table.max_size // length),
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(
            samples_per_insert=config.samples_per_insert,
            min_size_to_sample=-(-table.min_size // length),
            error_buffer=error_buffer(config, demand, length, num_shards) / length,
        ),
        signature=layout.signature,
    )


def make_input_fn(
    server_addresses: Sequence[str],
    layout: Layout,
    demand: LearnerDemand,
    online_fraction: float = 1.0,
) -> Callable[[object], tf.data.Dataset]:
    """Makes the learner's `input_fn`: an endless dataset of per-replica batches.

    With several replay servers, the shards, every batch has equal parts of all of them, in the
    order of their addresses. Each shard draws by its own priorities; the probabilities and the
    table sizes of the samples are those among the items of all shards. With an `online_fraction`
    below 1, they are those among the items of all tables of one name: what is drawn from the
    other is no bias to correct (symmetric sampling, Ball et al. 2023, arXiv:2302.02948).

    If items have n transitions, n batches are made from B items, where B is the number of
    transitions in a batch. Each of the batches has one transition of every item, from a random
    place in it. So a batch is distributed as if its transitions were drawn independently of each
    other.

    Args:
      server_addresses: "host:port" of each replay server.
      layout: the layout of the items.
      demand: how much the learner takes at a time.
      online_fraction: see `batch_parts`.

    Returns:
      A function from an `InputContext` to a dataset of `Sample`s.
    """
    length, num_shards = layout.transitions_per_item, len(server_addresses)
    batch_size = demand.of_shard(num_shards).per_replica_batch_size * num_shards
    parts = batch_parts(batch_size, num_shards, online_fraction)

    @tf.autograph.experimental.do_not_convert  # AutoGraph takes a second.
    def joined(*drawn: reverb.ReplaySample) -> Sample:
        sample, size = drawn[0], drawn[0].info.table_size
        if len(parts) > 1:
            sample = tf.nest.map_structure(lambda *each: tf.concat(each, 0), *drawn)
            sizes = []
            for start in range(0, len(parts), num_shards):  # The tables of one name.
                same = slice(start, start + num_shards)
                total = tf.add_n([one.info.table_size[-1] for one in drawn[same]])
                sizes.append(tf.fill([sum(part.size for part in parts[same])], total))
            size = tf.concat(sizes, 0)
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
        drawn = [
            draw(server_addresses[part.server], layout.signature, part.size, length, part.table)
            for part in parts
        ]
        draws = tf.data.Dataset.zip(tuple(drawn))
        if length == 1:
            draws = draws.prefetch(PREFETCHED_BATCHES)
        # The functions run in the thread that asks for a batch.
        items = draws.map(joined)
        samples = items.map(unpack) if length == 1 else items.flat_map(batches)
        return samples.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    return input_fn


def draw(
    server_address: str,
    signature: Any,
    count: int,
    transitions_per_item: int,
    table: str = TABLE,
) -> tf.data.Dataset:
    """Draws items of a table, by the table's own selector.

    Args:
      server_address: "host:port" of the replay server.
      signature: nest of `tf.TensorSpec`, of the table's items.
      count: items in a draw.
      transitions_per_item: the number of transitions in an item of the table.
      table: name of the table.

    Returns:
      An endless dataset of `reverb.ReplaySample`s of [count, ...] tensors.
    """
    dataset = reverb.TrajectoryDataset(
        server_address,
        table,
        dtypes=tf.nest.map_structure(lambda spec: spec.dtype, signature),
        shapes=tf.nest.map_structure(lambda spec: spec.shape, signature),
        max_in_flight_samples_per_worker=draws_ahead(transitions_per_item) * count,
        num_workers_per_iterator=1,
    )
    return dataset.batch(count, drop_remainder=True)


def make_queue(size: int, demand: LearnerDemand, layout: Any, num_shards: int = 1) -> reverb.Table:
    """Makes a queue in place of a replay: each item is taken once, the oldest first.

    Inserts into a full queue wait.

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


def make_queue_input_fn(
    server_addresses: Sequence[str], layout: Any, demand: LearnerDemand
) -> Callable[[object], tf.data.Dataset]:
    """Makes the learner's `input_fn` of a queue: an endless dataset of per-replica batches.

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
