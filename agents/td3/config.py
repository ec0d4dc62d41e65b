"""All hyper-parameters of TD3."""

import dataclasses
from typing import Literal

from agents.config import NoiseSettings, OffPolicyConfig, PixelNoiseSettings, PolicySettings
from agents.replay.config import FrameReplayConfig, ReplayConfig


@dataclasses.dataclass(frozen=True)
class TD3Config(NoiseSettings, PolicySettings, OffPolicyConfig):
    """Hyper-parameters of TD3 (Fujimoto et al. 2018, arXiv:1802.09477).

    Defaults are the paper's, unless stated otherwise. Hidden layers are those of D4PG (LayerNorm
    and tanh, then ELU), not the paper's ReLU.
    """

    policy_layers: tuple[int, ...] = (256, 256)
    """Units of the policy's hidden layers. The paper uses 400 and 300."""
    critic_layers: tuple[int, ...] = (256, 256)
    """Units of each critic's hidden layers. The paper uses 400 and 300."""
    n_step: int = 3
    """Number of rewards in a return before it bootstraps. The paper uses 1."""
    exploration_sigma: float = 0.3
    """Standard deviation of the actors' noise; actions span [-1, 1]. The paper uses 0.1."""
    exploration_random_steps: int = 5000
    """Environment steps, over all actors, before the policy acts. The paper uses 10,000 or 1,000,
    and draws a new random action in every step; here, each is held for 8 steps on average."""
    preactivation_penalty: float = 1e-3
    """Weight, in the policy's loss, of half the squared excess over 2 of the inputs of the policy's
    tanh (`agents.networks.actor_critic.preactivation_penalty`). The paper has no penalty."""
    global_batch_size: int = 256
    """Transitions in one learner step, over all replicas. The paper uses 100."""
    policy_learning_rate: float = 3e-4
    """Adam's step size for the policy. The paper uses 1e-3."""
    critic_learning_rate: float = 3e-4
    """Adam's step size for the critics. The paper uses 1e-3."""
    policy_average: int = 1000
    target_update_rate: float = 0.005
    """tau: how far an update moves the target networks towards the online networks."""
    policy_delay: int = 2
    """Learner steps between two updates of the policy and of the target networks."""
    target_noise_sigma: float = 0.2
    """Standard deviation of the noise that smooths the target policy."""
    target_noise_clip: float = 0.5
    """Maximum absolute value of that noise."""
    value_scale: Literal["none", "returns"] = "none"
    """`returns`: divide rewards by the spread of the returns seen so far, for rewards whose size is
    far from 1 (`agents.learning.value_scale`)."""
    td_loss: str = "squared"
    """Loss of a TD error: `squared`, `huber`, or the import path of a function
    (`agents.learning.losses`)."""
    replay: ReplayConfig = ReplayConfig(samples_per_insert=256.0)
    """The replay table. 256 samples per insert are one learner step per environment step, as in the
    paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "policy_delay")
        self.check_at_least(0, "target_noise_sigma", "target_noise_clip")
        self.check(0 < self.target_update_rate <= 1, "target_update_rate", "a number in (0, 1]")


@dataclasses.dataclass(frozen=True)
class PixelTD3Config(PixelNoiseSettings, TD3Config):
    """Hyper-parameters of TD3 from pixels.

    Where they differ from TD3 from state, they follow DrQ-v2 (`PixelNoiseSettings`), unless stated
    otherwise.
    """

    policy_average: int = 1
    """Learner steps over which the weights of the evaluated policy are averaged. From state the
    default is 1000; from pixels, an average was not tried."""
    policy_delay: int = 1


# DrQ-v2 (Yarats et al. 2021, arXiv:2107.09645) for tasks of medium difficulty, at 84 x 84 with an
# action repeat of 2. Its smoothing of the target policy follows the noise of the actors; here it
# has the width to which that falls. Hidden layers are TD3's of this project.
DRQ_V2 = PixelTD3Config(
    discount=0.99,
    encoder="drq_v2",
    policy_layers=(1024, 1024),
    critic_layers=(1024, 1024),
    global_batch_size=256,
    exploration_random_steps=4_000,
    exploration_steps=500_000,
    policy_learning_rate=1e-4,
    critic_learning_rate=1e-4,
    preactivation_penalty=0.0,
    squash_gradient="tanh",
    target_noise_sigma=0.1,
    target_noise_clip=0.3,
    replay=FrameReplayConfig(max_size=1_000_000, min_size=2_000, samples_per_insert=128.0),
)
