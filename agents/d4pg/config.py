"""All hyper-parameters of D4PG."""

import dataclasses
from typing import Literal

from agents.config import (
    CategoricalSettings,
    MemoryConfig,
    MemorySettings,
    NoiseSettings,
    OffPolicyConfig,
    PixelNoiseSettings,
    PolicySettings,
    TargetSettings,
)
from agents.replay.config import ReplayConfig


@dataclasses.dataclass(frozen=True)
class CriticSettings(TargetSettings):
    """How D4PG trains its critic."""

    num_critics: Literal[1, 2] = 1
    """2: of two critics, the one with the smaller mean makes targets and trains the policy, as in
    TD3; a learner step takes longer. The paper has one."""
    critic_loss: str = "categorical"
    """`categorical`, or the import path of a function with the signature of
    `agents.learning.categorical.categorical_td_loss`."""


@dataclasses.dataclass(frozen=True)
class D4PGConfig(
    MemorySettings,
    NoiseSettings,
    CriticSettings,
    CategoricalSettings,
    PolicySettings,
    OffPolicyConfig,
):
    """Hyper-parameters of D4PG (Barth-Maron et al. 2018, arXiv:1804.08617).

    Defaults are those of the paper or its published implementations, unless stated otherwise.
    `--preset paper` uses the published values throughout.
    """

    policy_layers: tuple[int, ...] = (256, 256)
    """Units of the policy's hidden layers. The paper uses 300 and 200."""
    critic_layers: tuple[int, ...] = (256, 256)
    """Units of the critic's hidden layers. The paper uses 400 and 300."""
    global_batch_size: int = 128
    """Transitions in one learner step, over all replicas. The paper uses 256. Half of that, with
    the same samples per insert, makes twice as many learner steps."""
    n_step: int = 3
    """Number of rewards in a return before it bootstraps. The paper uses 5, with an eighth of the
    samples for each environment step."""
    value_min: float | None = None
    """Lowest atom. Default: from the environment's lowest reward and the discount. The reference
    implementation uses -150."""
    value_max: float | None = None
    """Highest atom. Default: from the environment's highest reward and the discount. The reference
    implementation uses 150."""

    exploration_random_steps: int = 5_000
    """Environment steps, over all actors, before the policy acts; until then, actions are random,
    each held for 8 steps on average. The paper has no random actions."""
    preactivation_penalty: float = 1e-3
    """Weight, in the policy's loss, of half the squared excess over 2 of the inputs of the policy's
    tanh. The paper has no penalty."""
    policy_learning_rate: float = 3e-4
    """Adam's step size for the policy. The paper uses 1e-4."""
    critic_learning_rate: float = 3e-4
    """Adam's step size for the critic. The paper uses 1e-4."""
    policy_average: int = 2000
    max_action_gradient_norm: float | None = 1.0
    """Maximum norm of one example's dQ/da. None: no clipping."""
    replay: ReplayConfig = ReplayConfig(min_size=5_000, samples_per_insert=256.0)
    """The replay table. The learner starts after 5,000 transitions, when actions are no longer
    random; the reference implementation starts after 1,000. 256 samples per insert are two learner
    steps per environment step; the reference implementation uses 32. Sampling is uniform; the paper
    prioritizes, but finds little gain."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_norm("max_action_gradient_norm")


# D4PG as published, for all but the paper's hardest tasks. Where the paper gives no value, this is
# the reference implementation's: samples per insert, value range, clipped gradients.
PAPER = D4PGConfig(
    normalize_observations=False,
    torso="mlp",
    global_batch_size=256,
    n_step=5,
    policy_layers=(300, 200),
    critic_layers=(400, 300),
    num_atoms=51,
    value_min=-150.0,
    value_max=150.0,
    critic_prior="uniform",
    policy_learning_rate=1e-4,
    critic_learning_rate=1e-4,
    policy_average=1,
    exploration_random_steps=0,
    exploration_sigma=0.3,
    exploration_spread=1.0,
    preactivation_penalty=0.0,
    replay=ReplayConfig(
        samples_per_insert=32.0,
        priority_exponent=0.6,
        importance_exponent_start=1.0,
        importance_exponent_end=1.0,
        transitions_per_item=1,
    ),
)


# A batch of 32 windows has 640 steps; one is due every 5 agent steps.
RECURRENT = D4PGConfig(
    memory=MemoryConfig(core="lstm"),
    global_batch_size=32,
    replay=ReplayConfig(min_size=5_000, samples_per_insert=64.0),
)
# The torso, rates and targets of SimBa's DDPG (Lee et al. 2024, arXiv:2410.09754), which has a
# scalar critic, an action repeat of 2, and one learner step per step of the simulator.
SIMBA = D4PGConfig(
    normalize_observations=True,
    torso="simba",
    policy_layers=(128,),
    critic_layers=(512, 512),
    global_batch_size=256,
    n_step=1,
    num_atoms=101,
    value_scale="returns",
    policy_learning_rate=1e-4,
    critic_learning_rate=1e-4,
    weight_decay=1e-2,
    policy_average=1,
    exploration_sigma=0.1,
    exploration_spread=1.0,
    preactivation_penalty=0.0,
    target_update_period=1,
    target_update_rate=0.005,
    max_action_gradient_norm=None,
    max_gradient_norm=None,
)
# Those of XQC (Palenicek et al. 2025, arXiv:2509.25174), which has a stochastic policy, updates it
# in every third learner step, and lowers its rates to 3e-5.
XQC = dataclasses.replace(
    SIMBA,
    normalize_observations=False,
    torso="xqc",
    policy_layers=(256,) * 4,
    critic_layers=(512,) * 4,
    num_critics=2,
    policy_learning_rate=3e-4,
    critic_learning_rate=3e-4,
    weight_decay=0.0,
    exploration_sigma=0.3,
)


@dataclasses.dataclass(frozen=True)
class PixelD4PGConfig(PixelNoiseSettings, D4PGConfig):
    """Hyper-parameters of D4PG from pixels.

    Where they differ from D4PG from state, they follow DrQ-v2 (`PixelNoiseSettings`), unless stated
    otherwise.
    """

    policy_average: int = 1
    """Learner steps over which the weights of the evaluated policy are averaged. From state the
    default is 2000; from pixels, it made no difference on reacher:easy (docs/results.md)."""
    target_update_period: int = 1
