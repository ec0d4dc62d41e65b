"""Hyper-parameters of the GAN."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from rl_replicator.errors import check_option
from rl_replicator.learners.image_size import check_in_memory

# Defaults that depend on the data set.
_BY_DATA: dict[str, dict[str, Any]] = {
    "fashion_mnist": {
        "width": 16,
        "image_size": 0,
        "steps": 5000,
        "global_batch_size": 64,
        "discriminator_steps": 2,
        "generator_learning_rate": 5e-4,
        "discriminator_learning_rate": 5e-4,
        "decay_steps": 0,
        "evaluate_steps": 500,
    },
    # Miyato et al. 2018, table 4 and setting C.
    "cifar10": {
        "width": 64,
        "image_size": 0,
        "steps": 100_000,
        "global_batch_size": 64,
        "discriminator_steps": 5,
        "generator_learning_rate": 2e-4,
        "discriminator_learning_rate": 2e-4,
        "decay_steps": 100_000,
        "evaluate_steps": 5000,
    },
    # Miyato & Koyama 2018, section 6.
    "imagenet": {
        "width": 64,
        "image_size": 128,
        "steps": 450_000,
        "global_batch_size": 64,
        "discriminator_steps": 5,
        "generator_learning_rate": 2e-4,
        "discriminator_learning_rate": 2e-4,
        "decay_steps": 50_000,
        "evaluate_steps": 10_000,
    },
}


@dataclasses.dataclass(frozen=True)
class SNGANConfig:
    """Train a class-conditional SN-GAN to generate images.

    The default of a setting that is None depends on the data set.
    """

    data: Literal["fashion_mnist", "cifar10", "imagenet"] = "fashion_mnist"
    """Data set; imagenet is any folder of TFRecord files with images, see docs/learners.md."""
    data_dir: Path | None = None
    """Directory of the data. Default for Fashion-MNIST: the directory of Debian's package."""
    features: Path | None = None
    """Features for FID and inception score: the run directory of a ResNet trained on the same data,
    or Inception's file classify_image_graph_def.pb. Default: neither is computed."""
    width: int | None = None
    """Number of channels in the layers with the highest resolution."""
    image_size: int | None = None
    """Height and width to which images of TFRecord files are resized; even and at least 8."""
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """Dtype in which the layers compute; auto is bfloat16 if this machine computes it fast. A run
    keeps its initial dtype."""
    steps: int | None = None
    """Updates of the generator."""
    global_batch_size: int | None = None
    """Real images in an update, over all replicas."""
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
    seed: int = 1
    """Seed of the weights, the noise and the order of the images."""

    def __post_init__(self) -> None:
        for name in (
            "width",
            "steps",
            "global_batch_size",
            "discriminator_steps",
            "generator_learning_rate",
            "discriminator_learning_rate",
            "noise_size",
            "evaluate_steps",
        ):
            value = getattr(self, name)
            check_option(value is None or value > 0, name, "more than 0", value)
        # The networks double at least 4x4 at least once. Images in memory keep their size, 0 here.
        size = self.image_size
        if self.data == "imagenet":
            is_size = size is None or (size >= 8 and size % 2 == 0)
            check_option(is_size, "image_size", "an even number of at least 8", size)
        else:
            check_in_memory(self.data, size)
        for name in ("beta_1", "beta_2", "average_decay"):
            value = getattr(self, name)
            check_option(0 <= value < 1, name, "a number from 0 to below 1", value)
        check_option(
            self.decay_steps is None or self.decay_steps >= 0,
            "decay_steps",
            "at least 0",
            self.decay_steps,
        )
        check_option(self.samples >= 2, "samples", "at least 2", self.samples)

    def on_this_machine(self) -> "SNGANConfig":
        """Returns the config with the precision that suits this machine, if it is "auto"."""
        from rl_replicator.layers import precision  # Imports TensorFlow.

        name: Any = precision.resolve(self.precision)
        return dataclasses.replace(self, precision=name)

    def resolved(self) -> Any:
        """Returns a config with defaults for the data set in place of None, except for paths."""
        suits = _BY_DATA[self.data]
        missing = {name: value for name, value in suits.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing)
