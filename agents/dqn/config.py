"""All hyper-parameters of DQN."""

import dataclasses
from typing import Literal

from agents.config import (
    CategoricalSettings,
    MemoryConfig,
    MemorySettings,
    OffPolicyConfig,
    PixelSettings,
    TargetSettings,
)
from agents.replay.config import FrameReplayConfig, ReplayConfig


@dataclasses.dataclass(frozen=True)
class DQNConfig(MemorySettings, TargetSettings, CategoricalSettings, OffPolicyConfig):
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
    n_step: int = 3
    global_batch_size: int = 128
    exploration_epsilon: float = 0.4
    """Base of the probability of a random action. Environment i of N has
    epsilon**(1 + exponent * i / (N - 1)), and a single one epsilon**(1 + exponent / 2)."""
    exploration_exponent: float = 7.0
    """How far the probabilities are apart; 0: all are epsilon."""
    exploration_random_steps: int = 1_000
    """Environment steps, over all actors, in which all actions are random."""
    max_gradient_norm: float | None = 10.0
    replay: ReplayConfig = ReplayConfig(samples_per_insert=128.0, priority_exponent=0.6)
    """The replay table. 128 samples per insert are one learner step per environment step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_good = not self.value_rescaling or self.critic_loss != "categorical"
        self.check(is_good, "value_rescaling", "False with the critic_loss categorical")
        self.check_at_least(0, "exploration_random_steps")
        self.check(0 <= self.exploration_epsilon <= 1, "exploration_epsilon", "a number in [0, 1]")
        self.check_weight("exploration_exponent")


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
    feature_size: int = 256
    critic_layers: tuple[int, ...] = (256,)
    steps_per_call: int = 4
    replay: FrameReplayConfig = FrameReplayConfig(samples_per_insert=32.0, priority_exponent=0.6)
    """The replay table. 32 samples per insert are a learner step every four actions, as in the
    paper."""
