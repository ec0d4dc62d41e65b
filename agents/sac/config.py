"""All hyper-parameters of SAC."""

import dataclasses
import math
from typing import Literal

from agents.config import OffPolicyConfig, PixelSettings, PolicySettings


@dataclasses.dataclass(frozen=True)
class SACConfig(PolicySettings, OffPolicyConfig):
    """Hyper-parameters of SAC (Haarnoja et al. 2018, arXiv:1812.05905).

    Defaults are the paper's, unless stated otherwise. Hidden layers are those of D4PG (LayerNorm
    and tanh, then ELU), not the paper's ReLU.
    """

    n_step: int = 3
    """Number of rewards in a return before it bootstraps; the entropy of the steps in between is
    ignored. The paper uses 1."""
    initial_temperature: float = 0.1
    """Initial alpha: the value of a nat of entropy in units of reward. The paper uses 1."""
    target_entropy: float | None = None
    """Entropy of the policy, in nats, that the temperature maintains. Default: minus the number of
    action dimensions."""
    temperature_learning_rate: float = 3e-4
    """Adam's step size for the logarithm of the temperature."""
    target_update_rate: float = 0.01
    """tau: how far an update moves the target networks towards the online networks. The paper uses
    0.005, with four times as many learner steps for each environment step."""
    value_scale: Literal["none", "returns"] = "none"
    """`returns`: divide rewards by the spread of the returns seen so far, for rewards whose size is
    far from 1 (`agents.learning.value_scale`). The temperature, and the metric of this
    name, are then in units of the divided rewards."""
    td_loss: str = "squared"
    """Loss of a TD error: `squared`, `huber`, or the import path of a function
    (`agents.learning.losses`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("initial_temperature")
        is_good = self.target_entropy is None or math.isfinite(self.target_entropy)
        self.check(is_good, "target_entropy", "a finite number")
        self.check_rate("temperature_learning_rate")
        self.check(0 < self.target_update_rate <= 1, "target_update_rate", "a number in (0, 1]")


@dataclasses.dataclass(frozen=True)
class PixelSACConfig(PixelSettings, SACConfig):
    """Hyper-parameters of SAC from pixels.

    Shifts of the frames and the encoder follow DrQ-v2 (Yarats et al. 2021, arXiv:2107.09645).
    """

    global_batch_size: int = 128
    steps_per_call: int = 4
