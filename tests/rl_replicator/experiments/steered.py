"""A learner whose config has a union: the dataclass is chosen by a word after the options."""

import dataclasses

from tests.rl_replicator.learners import tiny_learners

NAME = f"{__name__}:make_learner"


@dataclasses.dataclass(frozen=True)
class Fast:
    """Has an option of its own."""

    haste: float = 2.0


@dataclasses.dataclass(frozen=True)
class Slow:
    """Has two others."""

    force: float = 1.0
    patience: int = 3


@dataclasses.dataclass(frozen=True)
class Config(tiny_learners.Config):
    """Neither steering has an effect."""

    steering: Fast | Slow = Fast()


def make_learner(replicator, config: Config):
    return tiny_learners.Regression(replicator, config)
