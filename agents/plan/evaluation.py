"""When a policy is evaluated, and in which episodes."""

import dataclasses

import numpy as np

from rl_replicator.errors import check_option


@dataclasses.dataclass(frozen=True)
class EvaluationSchedule:
    """When to evaluate, and for how long."""

    every: int = 10_000
    """Environment steps between evaluations."""
    episodes: int = 3
    """Episodes per evaluation during the run."""
    last_episodes: int = 10
    """Episodes of the evaluation at the end of the run."""
    max_episode_steps: int = 10_000
    """Environment steps after which an evaluation episode that has not ended is cut off."""

    def __post_init__(self) -> None:
        for name in ("every", "episodes", "last_episodes", "max_episode_steps"):
            value = getattr(self, name)
            check_option(value >= 1, f"evaluation.{name}", "at least 1", value)


def evaluation_seed(seed: int, environment_steps: int) -> int:
    """Returns the seed of the environment of an evaluation; the same one after a resume.

    Args:
      seed: seed of the run.
      environment_steps: steps of the run at the evaluation.

    Returns:
      A seed that no actor uses.
    """
    sequence = np.random.SeedSequence([seed, environment_steps, 0xE7A1])
    return int(sequence.generate_state(1)[0])
