"""Class-conditional SN-GAN: `rl-replicator train sngan --data fashion_mnist`."""

from typing import TYPE_CHECKING

from rl_replicator.learners.command import LearnerCommand
from rl_replicator.learners.sngan.config import SNGANConfig

if TYPE_CHECKING:
    from rl_replicator.learners.contract import Learner
    from rl_replicator.replicator import Replicator

__all__ = ["SNGANConfig", "command"]


def _make(replicator: "Replicator", config: SNGANConfig) -> "Learner":
    from rl_replicator.learners.sngan.learner import SNGANLearner  # Slow to import.

    return SNGANLearner(replicator, config)


command = LearnerCommand("sngan", SNGANConfig, _make)
