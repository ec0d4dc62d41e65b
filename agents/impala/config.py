"""All hyper-parameters of IMPALA."""

import dataclasses
from typing import Literal

from agents.config import CoreConfig, EncoderSettings, LearnerConfig, PolicySettings

_MAX_UNROLL = 1000


@dataclasses.dataclass(frozen=True)
class ImpalaConfig(PolicySettings, LearnerConfig):
    """Hyper-parameters of IMPALA (Espeholt et al. 2018, arXiv:1802.01561).

    Losses are means over the steps of a batch, where the paper adds them up, and rewards are
    divided by the spread of the returns, where it clips them. Adam takes the place of RMSProp.
    """

    policy_layers: tuple[int, ...] = (64, 64)
    critic_layers: tuple[int, ...] = (64, 64)
    """Units of the hidden layers of the critic, which values states."""
    policy_learning_rate: float = 1e-3
    """Adam's step size, for the policy, the critic and the encoder."""
    memory: CoreConfig = CoreConfig()
    """The recurrent core."""
    unroll_length: int = 20
    """Consecutive steps in an unroll, across the ends of episodes."""
    global_batch_size: int = 8
    """Unrolls in one learner step, over all replicas. The paper uses 32."""
    queue_size: int = 8
    """Unrolls that may wait for the learner. Actors wait while the queue is full, so that it bounds
    the age of the data."""
    steps_per_call: int = 1
    """Learner steps inside one compiled call. Actors get no weights from inside a call."""
    vtrace_lambda: float = 1.0
    """lambda, the weight of longer returns in V-trace (remark 2 of the paper)."""
    max_rho: float = 1.0
    """rho-bar: greatest importance weight of a temporal difference and of a policy gradient."""
    max_c: float = 1.0
    """c-bar: greatest factor by which the importance weight of a step scales later differences."""
    entropy_cost: float = 0.01
    """Weight of the policy's entropy, in nats, which the loss rewards."""
    baseline_cost: float = 0.5
    """Weight of the critic's loss."""
    max_gradient_norm: float | None = 1.0
    """Maximum global norm of the gradient. None: no clipping. The paper uses 40 for sums."""
    value_scale: Literal["none", "returns"] = "returns"
    """`returns`: divide rewards by the spread of the returns seen so far
    (`agents.learning.value_scale`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(1 <= self.unroll_length <= _MAX_UNROLL, "unroll_length", f"1 to {_MAX_UNROLL}")
        self.check_at_least(1, "queue_size")
        self.check(self.torso != "xqc", "torso", "mlp or simba")
        self.check(0 <= self.vtrace_lambda <= 1, "vtrace_lambda", "a number in [0, 1]")
        self.check_weight("max_rho", "max_c", "entropy_cost", "baseline_cost")
        self.check_norm("max_gradient_norm")


@dataclasses.dataclass(frozen=True)
class PixelImpalaConfig(EncoderSettings, ImpalaConfig):
    """Hyper-parameters of IMPALA from pixels."""

    encoder: str = "impala"
    feature_size: int = 256
    policy_layers: tuple[int, ...] = (256,)
    critic_layers: tuple[int, ...] = (256,)
    policy_learning_rate: float = 3e-4
    frame_stack: int = 4
    max_shift: int = 0
    """Maximum number of pixels by which training observations are randomly shifted. 0: no
    augmentation, as actors see the frames for which they choose actions."""
