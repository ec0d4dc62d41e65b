"""All hyper-parameters of CRR."""

import dataclasses
from typing import Literal

from agents.config import CategoricalSettings, OffPolicyConfig, PixelSettings, PolicySettings
from agents.d4pg.config import CriticSettings
from agents.replay.config import ReplayConfig


@dataclasses.dataclass(frozen=True)
class CRRConfig(CriticSettings, CategoricalSettings, PolicySettings, OffPolicyConfig):
    """Hyper-parameters of CRR (Wang et al. 2020, arXiv:2006.15134).

    The critic is D4PG's, as in the paper. Layers and step sizes are those of D4PG here.
    """

    weighting: Literal["binary", "exp", "none"] = "exp"
    """f, the weight of a recorded action in the policy's loss, given its advantage A: `binary`, 1
    if A is positive, else 0; `exp`, exp(A / beta), at most `max_weight`; `none`, always 1, which is
    behaviour cloning."""
    advantage: Literal["mean", "max"] = "mean"
    """What the advantage of a recorded action is compared with: the mean or the maximum of the
    values of sampled actions."""
    num_samples: int = 4
    """Actions that are sampled from the policy for an advantage."""
    beta: float = 1.0
    """Temperature of the weighting `exp`, in units of the critic's atoms: rewards, divided by the
    spread of the returns with `--agent.value-scale returns`."""
    max_weight: float = 20.0
    """Greatest weight of an action with the weighting `exp`."""
    num_components: int = 1
    """Gaussians in the mixture that is the policy. 1: a Gaussian. More can hold several ways to act
    in a state, but the most probable one, which is evaluated, is not the mean of noisy actions."""
    policy_average: int = 2000
    replay: ReplayConfig = ReplayConfig()
    """The replay table. Its ratio has no effect with `--offline`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "num_samples", "num_components")
        self.check_positive("beta", "max_weight")


@dataclasses.dataclass(frozen=True)
class PixelCRRConfig(PixelSettings, CRRConfig):
    """Hyper-parameters of CRR from pixels. Datasets hold no frames: it learns from its own steps.

    Shifts of the frames and the encoder follow DrQ-v2 (Yarats et al. 2021, arXiv:2107.09645).
    """

    global_batch_size: int = 128
    steps_per_call: int = 4
