"""Every hyper-parameter of D4PG, once."""

import dataclasses

from agents.replay.config import ReplayConfig
from rl_replicator.errors import check_option


@dataclasses.dataclass(frozen=True)
class D4PGConfig:
    """Hyper-parameters of D4PG (Barth-Maron et al. 2018, arXiv:1804.08617).

    Every default is the paper's or that of its published implementations, unless its line says
    otherwise.
    """

    policy_layers: tuple[int, ...] = (256, 256)
    """Units of the policy's hidden layers."""
    critic_layers: tuple[int, ...] = (256, 256)
    """Units of the critic's hidden layers."""
    num_atoms: int = 51
    """Atoms of the return distribution."""
    value_min: float | None = None
    """Lowest atom. Default: from the environment's lowest reward and the discount."""
    value_max: float | None = None
    """Highest atom. Default: from the environment's highest reward and the discount."""

    discount: float = 0.99
    """gamma. Applied by the adder and nowhere else."""
    n_step: int = 5
    """Steps of reward in a return before it bootstraps."""
    exploration_sigma: float = 0.3
    """Standard deviation of the actors' Gaussian noise; actions span [-1, 1]."""
    exploration_sigma_end: float | None = None
    """What it has become after `exploration_steps`. Default: it stays."""
    exploration_steps: int = 100_000
    """Environment steps over which it changes, linearly."""

    global_batch_size: int = 256
    """Transitions of one learner step, over all replicas."""
    policy_learning_rate: float = 3e-4
    """Adam's step size for the policy. The paper uses 1e-4."""
    critic_learning_rate: float = 3e-4
    """Adam's step size for the critic. The paper uses 1e-4."""
    target_update_period: int = 100
    """Learner steps between two updates of the target networks."""
    target_update_rate: float = 1.0
    """tau: how far an update takes the target to the online networks. 1 copies them."""
    max_action_gradient_norm: float | None = 1.0
    """Largest norm of one example's dQ/da. None: no clipping."""
    max_gradient_norm: float | None = 40.0
    """Largest global norm of a network's gradient. None: no clipping."""
    steps_per_call: int = 16
    """Learner steps inside one compiled call."""

    replay: ReplayConfig = ReplayConfig()
    """The replay table."""

    def __post_init__(self) -> None:
        def check(is_good: bool, name: str, expected: str) -> None:
            check_option(is_good, f"agent.{name}", expected, getattr(self, name))

        for name in ("policy_layers", "critic_layers"):
            sizes = getattr(self, name)
            is_good = len(sizes) > 0 and all(size >= 1 for size in sizes)
            check(is_good, name, "one or more positive layer sizes")
        for name in (
            *("n_step", "global_batch_size", "target_update_period", "steps_per_call"),
            "exploration_steps",
        ):
            check(getattr(self, name) >= 1, name, "a whole number of at least 1")
        check(0 < self.target_update_rate <= 1, "target_update_rate", "a number in (0, 1]")
        for name in ("policy_learning_rate", "critic_learning_rate"):
            check(0 < getattr(self, name) < 1, name, "a number between 0 and 1")
        for name in ("max_action_gradient_norm", "max_gradient_norm"):
            norm = getattr(self, name)
            check(norm is None or norm > 0, name, "a positive number or None")
        check(self.num_atoms >= 2, "num_atoms", "at least 2")
        check(0 <= self.discount < 1, "discount", "a number in [0, 1)")
        for name in ("exploration_sigma", "exploration_sigma_end"):
            sigma = getattr(self, name)
            check(sigma is None or sigma >= 0, name, "a number of at least 0")
        low, high = self.value_min, self.value_max
        is_range = low is None or high is None or low < high
        check(is_range, "value_min", f"less than value_max ({high})")
