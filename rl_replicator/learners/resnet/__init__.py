"""ResNet v1.5 for images: `rl-replicator train resnet --data fashion_mnist`."""

from typing import TYPE_CHECKING

from rl_replicator.learners.command import LearnerCommand
from rl_replicator.learners.resnet.config import ResNetConfig

if TYPE_CHECKING:
    from rl_replicator.learners.contract import Learner
    from rl_replicator.replicator import Replicator

__all__ = ["ResNetConfig", "command"]


def _make(replicator: "Replicator", config: ResNetConfig) -> "Learner":
    from rl_replicator.learners.resnet.learner import ResNetLearner  # Slow to import.

    return ResNetLearner(replicator, config)


command = LearnerCommand("resnet", ResNetConfig, _make)
