"""Hyper-parameters of the GAN."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rl_replicator.learners.image_config import ImageConfig

# Miyato et al. 2018, table 4 and setting C.
_CIFAR10: dict[str, Any] = {
    "width": 64,
    "image_size": 0,
    "steps": 100_000,
    "global_batch_size": 64,
    "discriminator_steps": 5,
    "generator_learning_rate": 2e-4,
    "discriminator_learning_rate": 2e-4,
    "decay_steps": 100_000,
    "evaluate_steps": 5000,
}
_BY_DATA: dict[str, dict[str, Any]] = {
    "cifar10": _CIFAR10,
    "fashion_mnist": _CIFAR10
    | {
        "width": 16,
        "steps": 5000,
        "discriminator_steps": 2,
        "generator_learning_rate": 5e-4,
        "discriminator_learning_rate": 5e-4,
        "decay_steps": 0,
        "evaluate_steps": 500,
    },
    # Miyato & Koyama 2018, section 6.
    "imagenet": _CIFAR10
    | {"image_size": 128, "steps": 450_000, "decay_steps": 50_000, "evaluate_steps": 10_000},
}


@dataclasses.dataclass(frozen=True)
class SNGANConfig(ImageConfig):
    """Train a class-conditional SN-GAN to generate images.

    The default of a setting that is None depends on the data set.
    """

    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """Dtype in which the layers compute; auto is bfloat16 if this machine computes it fast. A run
    keeps its initial dtype."""
    features: Path | None = None
    """Features for FID and inception score: the run directory of a ResNet trained on the same data,
    or Inception's file classify_image_graph_def.pb. Default: neither is computed."""
    steps: int | None = None
    """Updates of the generator."""
    discriminator_steps: int | None = None
    """Updates of the discriminator per update of the generator."""
    generator_learning_rate: float | None = None
    """Learning rate of the generator's Adam."""
    discriminator_learning_rate: float | None = None
    """Learning rate of the discriminator's Adam."""
    beta_1: float = 0.0
    """Adam's decay of the mean of gradients."""
    beta_2: float = 0.9
    """Adam's decay of the mean of squared gradients."""
    decay_steps: int | None = None
    """Steps at the end of the run (at most all) over which the learning rates fall linearly to 0; 0
    for no decay."""
    noise_size: int = 128
    """Size of the noise vector that the generator gets in addition to the class."""
    average_decay: float = 0.999
    """Decay of the generator's moving average, which generates the samples."""
    samples: int = 10_000
    """Number of images that an evaluation generates."""
    evaluate_steps: int | None = None
    """Steps between evaluations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = (
            "steps discriminator_steps generator_learning_rate discriminator_learning_rate "
            "noise_size evaluate_steps"
        )
        self.check(positive, "more than 0", lambda value: value > 0)
        if self.data == "imagenet":  # The networks double at least 4x4 at least once.
            expected = "an even number of at least 8"
            self.check("image_size", expected, lambda size: size >= 8 and size % 2 == 0)
        below_1 = "a number from 0 to below 1"
        self.check("beta_1 beta_2 average_decay", below_1, lambda value: 0 <= value < 1)
        self.check("decay_steps", "at least 0", lambda value: value >= 0)
        self.check("samples", "at least 2", lambda value: value >= 2)

    def defaults(self) -> Mapping[str, Any]:
        return _BY_DATA[self.data]
