"""All hyper-parameters of MR.Q."""

import dataclasses
from typing import Any

from agents.config import (
    MAX_LAYER_SIZE,
    MAX_N_STEP,
    NoiseSettings,
    OffPolicyConfig,
    PixelSettings,
    PolicySettings,
)
from agents.replay.config import FrameReplayConfig, ReplayConfig

_LAP: dict[str, Any] = {
    "samples_per_insert": 256.0,
    "priority_exponent": 0.4,
    "importance_exponent_start": 0.0,
    "importance_exponent_end": 0.0,
}


@dataclasses.dataclass(frozen=True)
class MRQConfig(NoiseSettings, PolicySettings, OffPolicyConfig):
    """Hyper-parameters of MR.Q (Fujimoto et al. 2025, arXiv:2501.16142).

    Defaults are the paper's, unless stated otherwise, and the same for all environments.
    """

    width: int = 512
    """Units of every layer whose size is not set otherwise, features of states and of pairs; half
    as many are features of an action."""
    torso: str = "mlp"
    """Hidden layers of all networks: `mlp`, here layers with LayerNorm and ELU (in the paper, the
    policy's have ReLU); `simba` or the import path of a function (`agents.networks.torsos`)."""
    policy_layers: tuple[int, ...] = ()
    """Units of the policy's hidden layers. Empty: two of `width`."""
    critic_layers: tuple[int, ...] = ()
    """Units of each critic's hidden layers. Empty: three of `width`."""
    horizon: int = 5
    """Steps over which the encoders are unrolled, at least `n_step`."""
    n_step: int = 3
    encoder_learning_rate: float = 1e-4
    """Adam's step size for the encoders."""
    weight_decay: float = 1e-4
    """Share of all weights, times the step size, by which each step shrinks them (AdamW)."""
    max_gradient_norm: float = 20.0
    """Maximum global norm of the gradient of the critics."""
    dynamics_weight: float = 1.0
    """Weight of the error of the next features in the loss of the encoders."""
    reward_weight: float = 0.1
    """Weight of the cross-entropy of the reward in that loss."""
    end_weight: float = 0.1
    """Weight of the error of the episode's end in that loss."""
    num_bins: int = 65
    """Bins of a predicted reward, between -22,025 and 22,025, densest around 0."""
    target_update_period: int = 250
    """Learner steps after which policy and critics get the trained encoders, and the target
    networks are copied."""
    target_noise_sigma: float = 0.2
    """Standard deviation of the noise that smooths the target policy. For discrete actions, which
    are vectors from 0 to 1, it and the other noise are half as large."""
    target_noise_clip: float = 0.3
    """Maximum absolute value of that noise."""
    temperature: float = 10.0
    """Temperature of the softmax of a policy of discrete actions."""
    preactivation_penalty: float = 1e-5
    """Weight, in the policy's loss, of the mean square of the inputs of tanh or softmax."""
    exploration_random_steps: int = 5000
    """Environment steps, over all actors, before the policy acts. The paper uses 10,000, before the
    learner starts, and draws a new random action in every step; here, each is held for 8 steps on
    average."""
    exploration_sigma: float = 0.2
    replay: ReplayConfig = ReplayConfig(**_LAP)
    """The replay table of sequences, one for each step. 256 samples per insert are one learner step
    per action, as in the paper. Priorities are those of LAP (Fujimoto et al. 2020,
    arXiv:2007.06049): the Huber loss takes the place of importance weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(not self.normalize_observations, "normalize_observations", "False for MR.Q")
        self.check(self.torso != "xqc", "torso", "mlp or simba for MR.Q")
        self.check_rate("encoder_learning_rate")
        self.check_at_least(1, "target_update_period")
        self.check_at_least(2, "num_bins")
        self.check(2 <= self.width <= MAX_LAYER_SIZE, "width", f"2 to {MAX_LAYER_SIZE}")
        is_good = self.n_step <= self.horizon <= MAX_N_STEP
        self.check(is_good, "horizon", f"n_step ({self.n_step}) to {MAX_N_STEP}")
        self.check_at_least(0, "dynamics_weight", "reward_weight", "end_weight")
        self.check_at_least(0, "target_noise_sigma", "target_noise_clip")
        self.check_positive("max_gradient_norm", "temperature")

    def check_layers(self, name: str) -> None:
        """See `Settings`; none are as many of `width` as in the paper."""
        if getattr(self, name):
            super().check_layers(name)


@dataclasses.dataclass(frozen=True)
class PixelMRQConfig(PixelSettings, MRQConfig):
    """Hyper-parameters of MR.Q from pixels."""

    encoder: str = "mrq"
    feature_size: int = 512
    """Features of a state: units of the layer after the convolutions."""
    steps_per_call: int = 4
    replay: FrameReplayConfig = FrameReplayConfig(**_LAP)
