"""When a policy is judged, and in which episodes."""

import dataclasses

import numpy as np

from rl_replicator.errors import check_option


@dataclasses.dataclass(frozen=True)
class EvaluationSchedule:
    """When to evaluate, and for how long."""

    every: int = 10_000
    """Environment steps between two evaluations."""
    episodes: int = 3
    """Episodes of an evaluation during the run."""
    last_episodes: int = 10
    """Episodes of the evaluation that ends the run."""

    def __post_init__(self) -> None:
        for name in ("every", "episodes", "last_episodes"):
            value = getattr(self, name)
            check_option(value >= 1, f"evaluation.{name}", "at least 1", value)


def evaluation_seed(seed: int, environment_steps: int) -> int:
    """The environment's seed of an evaluation: the same again after a resume.

    Args:
      seed: of the run.
      environment_steps: at the evaluation.

    Returns:
      A seed that no actor uses.
    """
    sequence = np.random.SeedSequence([seed, environment_steps, 0xE7A1])
    return int(sequence.generate_state(1)[0])
