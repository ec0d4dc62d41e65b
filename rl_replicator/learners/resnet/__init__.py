"""ResNet v1.5 for images: `rl-replicator train resnet --data fashion_mnist`."""

from rl_replicator.learners.command import LearnerCommand
from rl_replicator.learners.resnet.config import ResNetConfig

__all__ = ["ResNetConfig", "command"]

command = LearnerCommand("resnet", ResNetConfig, f"{__name__}.learner:ResNetLearner")
