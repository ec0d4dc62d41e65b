"""The replay table: how it samples and evicts, and the ratio of samples to inserts it enforces."""

import dataclasses

import reverb

from agents.replay.config import ReplayConfig
from agents.replay.transitions import TABLE, Layout
from rl_replicator.errors import ConfigError, check_option

# Batches that the input pipeline prefetches.
PREFETCHED_BATCHES = 2
# Batches that a sampler may request ahead of those.
IN_FLIGHT_BATCHES = 2


@dataclasses.dataclass(frozen=True)
class LearnerDemand:
    """How many transitions the learner takes at a time.

    Attributes:
      global_batch_size: transitions of one learner step, over all replicas.
      steps_per_call: learner steps in one compiled call.
      num_replicas: replicas, each with an input pipeline of its own share of the batch.
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

    @property
    def transitions_in_flight(self) -> int:
        """Most transitions that the input pipelines can hold beyond those that a call consumed."""
        # In the sampler, being built, ready; two queued for the step, and one on its way there.
        held = IN_FLIGHT_BATCHES + 1 + PREFETCHED_BATCHES + 3
        return held * self.global_batch_size


def error_buffer(config: ReplayConfig, demand: LearnerDemand) -> float:
    """Computes the tolerance of the rate limiter, in samples, in either direction.

    It must cover a whole call of the learner plus everything its pipelines keep in flight, twice:
    otherwise actors and learner could only run in turns, or (below the samples of one insert) block
    each other forever.

    Args:
      config: of the table.
      demand: of the learner.

    Returns:
      The buffer in samples.

    Raises:
      ConfigError: if the table starts with too few rows for that buffer.
    """
    buffer = max(
        0.1 * config.min_size * config.samples_per_insert,
        2.0 * (demand.transitions_per_call + demand.transitions_in_flight),
        2.0 * config.samples_per_insert,
    )
    if buffer > config.min_size * config.samples_per_insert:
        needed = int(-(-buffer // config.samples_per_insert))
        raise ConfigError(
            f"--agent.replay.min-size: expected at least {needed} (a call of the learner takes "
            f"{demand.transitions_per_call} transitions and its input holds "
            f"{demand.transitions_in_flight} more, at {config.samples_per_insert:g} samples per "
            f"insert), got {config.min_size}; raise it, or lower --agent.steps-per-call"
        )
    return buffer


def make_table(config: ReplayConfig, demand: LearnerDemand, layout: Layout) -> reverb.Table:
    """Makes the table: prioritized (Schaul et al. 2016) or uniform, with a rate limiter.

    Args:
      config: of the table.
      demand: of the learner, for the limiter's tolerance.
      layout: of the items.

    Returns:
      A table to be served by one Reverb server.

    Raises:
      ConfigError: if config and demand would block each other.
    """
    sampler: reverb.selectors.Selector
    if config.priority_exponent > 0:
        sampler = reverb.selectors.Prioritized(config.priority_exponent)
    else:
        sampler = reverb.selectors.Uniform()
    return reverb.Table(
        name=TABLE,
        sampler=sampler,
        remover=reverb.selectors.Fifo(),
        max_size=config.max_size,
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(
            samples_per_insert=config.samples_per_insert,
            min_size_to_sample=config.min_size,
            error_buffer=error_buffer(config, demand),
        ),
        signature=layout.signature,
    )
