"""Class-conditional SN-GAN: `rl-replicator train sngan --data fashion_mnist`."""

from rl_replicator.learners.command import LearnerCommand
from rl_replicator.learners.sngan.config import SNGANConfig

__all__ = ["SNGANConfig", "command"]

command = LearnerCommand("sngan", SNGANConfig, f"{__name__}.learner:SNGANLearner")
