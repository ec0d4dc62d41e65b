"""All hyper-parameters of DQN."""

import dataclasses
import math
from typing import Literal

from agents.config import (
    CategoricalSettings,
    MemoryConfig,
    MemorySettings,
    OffPolicyConfig,
    PixelSettings,
)
from agents.replay.config import FrameReplayConfig, ReplayConfig


@dataclasses.dataclass(frozen=True)
class DQNConfig(MemorySettings, CategoricalSettings, OffPolicyConfig):
    """Hyper-parameters of DQN (Mnih et al. 2015) with extensions.

    These are Rainbow's (Hessel et al. 2018, arXiv:1710.02298) except noisy networks; exploration is
    that of Ape-X (Horgan et al. 2018, arXiv:1803.00933). Each extension can be left out:
    `critic_loss` huber, no `double_q`, no `duelling`, an `n_step` of 1 and a
    `replay.priority_exponent` of 0 make plain DQN.
    """

    critic_loss: Literal["categorical", "huber", "squared"] = "categorical"
    """`categorical`: the critic is a distribution on atoms (C51, Bellemare et al. 2017); `huber` or
    `squared`: it is a number, and atoms and their range are not used."""
    value_rescaling: bool = False
    """Whether the number stands for h(return), h(x) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000, as in
    R2D2, for rewards of very different sizes; only with `huber` or `squared`."""
    double_q: bool = True
    """Whether the online network chooses the action of the target, which the target network values
    (van Hasselt et al. 2016, arXiv:1509.06461)."""
    duelling: bool = True
    """Whether the value of the state and the advantages of the actions have hidden layers of their
    own (Wang et al. 2016, arXiv:1511.06581): the last one of `critic_layers`."""
    critic_layers: tuple[int, ...] = (256, 256)
    """Units of the network's hidden layers."""
    n_step: int = 3
    """Number of rewards in a return before it bootstraps."""
    global_batch_size: int = 128
    """Transitions in one learner step, over all replicas."""
    exploration_epsilon: float = 0.4
    """Base of the probability of a random action. Environment i of N has
    epsilon**(1 + exponent * i / (N - 1)), and a single one epsilon**(1 + exponent / 2)."""
    exploration_exponent: float = 7.0
    """How far the probabilities are apart; 0: all are epsilon."""
    exploration_random_steps: int = 1_000
    """Environment steps, over all actors, in which all actions are random."""
    target_update_period: int = 100
    """Learner steps between two updates of the target network."""
    target_update_rate: float = 1.0
    """tau: how far an update moves the target network towards the online network. 1 copies."""
    max_gradient_norm: float | None = 10.0
    """Maximum global norm of the gradient. None: no clipping."""
    replay: ReplayConfig = ReplayConfig(samples_per_insert=128.0, priority_exponent=0.6)
    """The replay table. 128 samples per insert are one learner step per environment step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "target_update_period")
        is_good = not self.value_rescaling or self.critic_loss != "categorical"
        self.check(is_good, "value_rescaling", "False with the critic_loss categorical")
        self.check_at_least(0, "exploration_random_steps")
        self.check(0 <= self.exploration_epsilon <= 1, "exploration_epsilon", "a number in [0, 1]")
        is_finite = 0 <= self.exploration_exponent < math.inf
        self.check(is_finite, "exploration_exponent", "a finite number, at least 0")
        self.check(0 < self.target_update_rate <= 1, "target_update_rate", "a number in (0, 1]")
        norm = self.max_gradient_norm
        self.check(
            norm is None or 0 < norm < math.inf, "max_gradient_norm", "a positive number, or None"
        )


# A batch of 32 windows has 640 steps; one is due every 5 agent steps.
RECURRENT = DQNConfig(
    memory=MemoryConfig(core="lstm"),
    global_batch_size=32,
    replay=ReplayConfig(samples_per_insert=64.0, priority_exponent=0.6),
)


@dataclasses.dataclass(frozen=True)
class PixelDQNConfig(PixelSettings, DQNConfig):
    """Hyper-parameters of DQN from pixels. The encoder is that of Mnih et al. 2015."""

    encoder: str = "nature"
    """The convolutional network: `small`, `nature`, `drq_v2`, `mrq`, `impala`, or the import path
    of a function (`agents.networks.encoders`)."""
    feature_size: int = 256
    """Number of units to which the features are projected."""
    critic_layers: tuple[int, ...] = (256,)
    """Units of the network's hidden layers."""
    steps_per_call: int = 4
    """Learner steps inside one compiled call."""
    replay: FrameReplayConfig = FrameReplayConfig(samples_per_insert=32.0, priority_exponent=0.6)
    """The replay table. 32 samples per insert are a learner step every four actions, as in the
    paper."""
