"""Every setting of the replay table, once."""

import dataclasses

from rl_replicator.errors import check_option


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """A prioritized replay table (Schaul et al. 2016, arXiv:1511.05952)."""

    max_size: int = 1_000_000
    """Transitions kept; the oldest leave first."""
    min_size: int = 1_000
    """Transitions in the table before the learner starts."""
    samples_per_insert: float = 64.0
    """Transitions sampled for each one inserted, on average over the run."""
    priority_exponent: float = 0.6
    """alpha: P(i) is proportional to priority**alpha. 0 samples uniformly."""
    importance_exponent_start: float = 0.4
    """beta at the start of the run: how far importance weights correct for the priorities."""
    importance_exponent_end: float = 1.0
    """beta at the end of the run. It grows linearly in between."""
    max_in_flight_items: int = 32
    """Items that an actor may have sent that the table has not yet confirmed."""

    def __post_init__(self) -> None:
        def check(is_good: bool, name: str, expected: str) -> None:
            check_option(is_good, f"agent.replay.{name}", expected, getattr(self, name))

        check(self.min_size >= 1, "min_size", "at least 1")
        check(self.max_size >= self.min_size, "max_size", f"at least min_size ({self.min_size})")
        check(self.samples_per_insert > 0, "samples_per_insert", "a positive number")
        check(self.max_in_flight_items >= 1, "max_in_flight_items", "at least 1")
        for name in ("priority_exponent", "importance_exponent_start", "importance_exponent_end"):
            check(0 <= getattr(self, name) <= 1, name, "a number in [0, 1]")
