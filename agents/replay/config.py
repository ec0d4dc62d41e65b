"""All settings of the replay table."""

import dataclasses
from typing import Self

from rl_replicator.errors import check_option

# 3,900 learner steps for each environment step, at a batch of 256.
_MAX_SAMPLES_PER_INSERT = 1_000_000
# Beyond that an item gains nothing, and the input holds many batches.
_MAX_TRANSITIONS_PER_ITEM = 64


@dataclasses.dataclass(frozen=True)
class SequenceConfig:
    """The items of a replay of sequences: windows of consecutive steps of an episode.

    `agents.replay.sequences` says how episodes end in them.
    """

    length: int
    """L: steps in a window, with the prefix and the step of the last observation to bootstrap
    from."""
    period: int = 1
    """P: every P-th step of an episode is the first one after the prefix of a window."""
    prefix: int = 0
    """F: steps in front of it, for the burn-in of a recurrent network. In front of an episode, they
    are not valid."""

    def __post_init__(self) -> None:
        """Raises ValueError if steps would be in no window, or only in its prefix."""
        if not (self.period >= 1 and self.prefix >= 0 and self.length > self.prefix + self.period):
            raise ValueError(f"expected length > prefix + period, got {self}")


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """A replay table, sampled uniformly or by priority (Schaul et al. 2016, arXiv:1511.05952)."""

    max_size: int = 1_000_000
    """Capacity in transitions; the oldest are removed first."""
    min_size: int = 1_000
    """Transitions in the table when the learner starts."""
    samples_per_insert: float = 64.0
    """Transitions sampled for each one inserted, on average over the run."""
    priority_exponent: float = 0.0
    """alpha: P(i) is proportional to priority**alpha; 0.6 in the paper on prioritized replay. 0
    samples uniformly. New transitions have a constant priority; the paper gives them the highest
    priority seen. It is the highest priority possible for a new critic for D4PG, and 1 for TD3 and
    SAC, whose priorities are absolute TD errors. So TD3 and SAC sample new transitions late where
    TD errors are above 1."""
    importance_exponent_start: float = 0.4
    """beta at the start of training; 1 corrects fully for the priorities, 0 not at all. D4PG's
    paper uses 1."""
    importance_exponent_end: float = 1.0
    """beta at the end of training; it grows linearly. After a prefill, the final value is reached
    `min_size` transitions before the end. A run that is continued with more `--steps` goes on with
    the lower value of its new length."""
    transitions_per_item: int = 8
    """Consecutive transitions that are stored and sampled together as one item of the table, which
    takes less time and memory (bench/results/README.md). A batch takes one transition from each
    item drawn, and the items serve as many batches as they have transitions. So the transitions of
    a batch are independent of each other; with 1, successive batches are, too. If a table is
    sampled by priority, each transition is an item."""
    max_in_flight_items: int = 32
    """Maximum number of transitions (not items of the table) per environment that were sent to the
    table and not yet confirmed."""

    @property
    def item_length(self) -> int:
        """Transitions in an item of the table."""
        return 1 if self.priority_exponent > 0 else self.transitions_per_item

    def of_windows(self, period: int) -> Self:
        """Returns the settings of a table of windows, of which one starts at every P-th transition.

        Args:
          period: P.
        """
        return dataclasses.replace(
            self,
            max_size=-(-self.max_size // period),
            min_size=-(-self.min_size // period),
            transitions_per_item=1,
        )

    def of_shard(self, num_shards: int) -> Self:
        """Returns the settings of one of several tables that share the transitions evenly.

        Args:
          num_shards: number of tables.
        """
        return dataclasses.replace(
            self,
            max_size=-(-self.max_size // num_shards),
            min_size=-(-self.min_size // num_shards),
        )

    def __post_init__(self) -> None:
        def check(is_good: bool, name: str, expected: str) -> None:
            check_option(is_good, f"agent.replay.{name}", expected, getattr(self, name))

        check(self.min_size >= 1, "min_size", "at least 1")
        check(self.max_size >= self.min_size, "max_size", f"at least min_size ({self.min_size})")
        check(self.max_size < 2**31, "max_size", "less than 2**31")
        check(
            0 < self.samples_per_insert <= _MAX_SAMPLES_PER_INSERT,
            "samples_per_insert",
            f"a positive number up to {_MAX_SAMPLES_PER_INSERT:,}",
        )
        check(
            1 <= self.transitions_per_item <= _MAX_TRANSITIONS_PER_ITEM,
            "transitions_per_item",
            f"a number from 1 to {_MAX_TRANSITIONS_PER_ITEM}",
        )
        check(self.max_in_flight_items >= 1, "max_in_flight_items", "at least 1")
        for name in ("priority_exponent", "importance_exponent_start", "importance_exponent_end"):
            check(0 <= getattr(self, name) <= 1, name, "a number in [0, 1]")


@dataclasses.dataclass(frozen=True)
class FrameReplayConfig(ReplayConfig):
    """A replay table of frames."""

    max_size: int = 100_000
    """Capacity in transitions; the oldest are removed first. Each holds one frame."""
    samples_per_insert: float = 128.0
    """Transitions sampled for each one inserted, on average over the run."""
    chunk_length: int = 4
    """Frames that are compressed together. More frames take less memory but more time to sample,
    because whole chunks are decompressed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option(
            self.chunk_length >= 1, "agent.replay.chunk_length", "at least 1", self.chunk_length
        )
