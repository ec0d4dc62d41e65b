"""The hyper-parameters of D4PG from pixels: those of D4PG with other defaults, and some more."""

import dataclasses
from typing import Literal

from agents.d4pg.config import D4PGConfig
from agents.replay.config import ReplayConfig
from rl_replicator.errors import check_option


@dataclasses.dataclass(frozen=True)
class PixelReplayConfig(ReplayConfig):
    """A replay table of frames, sampled uniformly."""

    max_size: int = 100_000
    """Transitions kept; the oldest leave first. Each holds one frame."""
    samples_per_insert: float = 128.0
    """Transitions sampled for each one inserted, on average over the run."""
    priority_exponent: float = 0.0
    """alpha: P(i) is proportional to priority**alpha. 0 samples uniformly."""
    chunk_length: int = 4
    """Frames that are compressed together. More of them take less memory, and more time to sample:
    whole chunks are decompressed (`bench/pixel_replay.py`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option(
            self.chunk_length >= 1, "agent.replay.chunk_length", "at least 1", self.chunk_length
        )


@dataclasses.dataclass(frozen=True)
class PixelD4PGConfig(D4PGConfig):
    """Hyper-parameters of D4PG from pixels.

    Where they differ from D4PG from state they follow DrQ-v2 (Yarats et al. 2021,
    arXiv:2107.09645), unless their line says otherwise.
    """

    discount: float = 0.97
    """gamma of an agent step, which is several steps of the simulator. DrQ-v2 takes 0.99 for two of
    them."""
    n_step: int = 3
    """Steps of reward in a return before it bootstraps."""
    exploration_sigma: float = 1.0
    """Standard deviation of the actors' Gaussian noise at first; actions span [-1, 1]."""
    exploration_sigma_end: float | None = 0.1
    """What it has become after `exploration_steps`. None: it stays."""
    exploration_steps: int = 40_000
    """Environment steps over which it changes, linearly. DrQ-v2 takes 100,000 for easy tasks."""

    global_batch_size: int = 128
    """Transitions of one learner step, over all replicas. DrQ-v2 takes 256."""
    target_update_period: int = 1
    """Learner steps between two updates of the target networks."""
    target_update_rate: float = 0.01
    """tau: how far an update takes the target to the online networks. 1 copies them."""
    steps_per_call: int = 4
    """Learner steps inside one compiled call."""

    frame_stack: int = 3
    """Frames in an observation."""
    encoder: Literal["small", "nature", "drq_v2", "impala"] = "small"
    """The convolutional network."""
    feature_size: int = 50
    """Units to which policy and critic narrow the encoder's features, each for itself."""
    max_shift: int = 4
    """Pixels by which training pictures are shifted at random. 0: not at all."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """In which convolutions compute; "auto" is bfloat16 where this machine is fast at it."""
    replay: PixelReplayConfig = PixelReplayConfig()
    """The replay table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("frame_stack", 1), ("feature_size", 1), ("max_shift", 0)):
            value = getattr(self, name)
            check_option(value >= least, f"agent.{name}", f"at least {least}", value)
