"""Hyper-parameters of the classifier."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from rl_replicator.errors import check_option
from rl_replicator.learners.image_size import check_in_memory

# Defaults that depend on the data set.
_SMALL: dict[str, Any] = {
    "stem": "small",
    "depth": 18,
    "global_batch_size": 128,
    "image_size": 0,
    "weight_decay": 5e-4,
    "warm_up_epochs": 1.0,
    "label_smoothing": 0.0,
}
_BY_DATA: dict[str, dict[str, Any]] = {
    "fashion_mnist": _SMALL | {"width": 16, "epochs": 15.0},
    "cifar10": _SMALL | {"width": 64, "epochs": 200.0},
    "imagenet": {
        "stem": "imagenet",
        "depth": 50,
        "width": 64,
        "epochs": 90.0,
        "global_batch_size": 256,
        "image_size": 224,
        "weight_decay": 1e-4,
        "warm_up_epochs": 5.0,
        "label_smoothing": 0.1,
    },
}


@dataclasses.dataclass(frozen=True)
class ResNetConfig:
    """Train a ResNet v1.5 to classify images.

    The default of a setting that is None depends on the data set.
    """

    data: Literal["fashion_mnist", "cifar10", "imagenet"] = "fashion_mnist"
    """Data set; imagenet is any folder of TFRecord files with images, see docs/learners.md."""
    data_dir: Path | None = None
    """Directory of the data. Default for Fashion-MNIST: the directory of Debian's package."""
    depth: Literal[18, 34, 50, 101] | None = None
    """Number of layers of the network."""
    width: int | None = None
    """Number of channels in the network's first stage."""
    stem: Literal["imagenet", "small"] | None = None
    """First layers: for images of about 224x224 (imagenet) or 32x32 (small)."""
    image_size: int | None = None
    """Height and width to which images of TFRecord files are resized."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Dtype in which the layers compute; auto is bfloat16 if this machine computes it fast. A run
    keeps its initial dtype."""
    epochs: float | None = None
    """Number of times that each image is seen."""
    global_batch_size: int | None = None
    """Images in a step, over all replicas."""
    micro_batches: int = 1
    """Parts of a replica's batch whose gradients are accumulated; more parts need less memory."""
    optimizer: Literal["momentum", "lars"] = "momentum"
    """Nesterov's momentum, or layer-wise adaptive rates for large batches."""
    learning_rate: float | None = None
    """Peak learning rate for a batch of 256; scaled with the batch. Default: 0.1 for momentum, 1.0
    for lars."""
    schedule: Literal["cosine", "step"] = "cosine"
    """Decay of the learning rate: a cosine, or a factor of 10 after 1/3, 2/3 and 8/9 of the run."""
    warm_up_epochs: float | None = None
    """Epochs over which the learning rate rises linearly from 0."""
    momentum: float = 0.9
    """Momentum: the factor by which the velocity decays."""
    weight_decay: float | None = None
    """L2 penalty on all weights except biases and the parameters of norms."""
    label_smoothing: float | None = None
    """Probability mass spread evenly over all classes."""
    cross_replica_norm: bool = False
    """Compute batch statistics over all replicas instead of over each replica."""
    evaluate_epochs: float = 1.0
    """Epochs between evaluations."""
    seed: int = 1
    """Seed of the weights, and of the order and augmentation of the images."""

    def __post_init__(self) -> None:
        for name in ("width", "global_batch_size", "micro_batches", "epochs", "learning_rate"):
            value = getattr(self, name)
            check_option(value is None or value > 0, name, "more than 0", value)
        # Images in memory keep their size, which is 0 here.
        size = self.image_size
        if self.data == "imagenet":
            check_option(size is None or size > 0, "image_size", "more than 0", size)
        else:
            check_in_memory(self.data, size)
        for name in ("weight_decay", "warm_up_epochs"):
            value = getattr(self, name)
            check_option(value is None or value >= 0, name, "at least 0", value)
        for name in ("momentum", "label_smoothing"):
            value = getattr(self, name)
            check_option(value is None or 0 <= value < 1, name, "a number from 0 to below 1", value)
        check_option(
            self.micro_batches <= 1 or not self.cross_replica_norm,
            "micro_batches",
            "1 with --cross-replica-norm, as replicas do not meet between micro-batches",
            self.micro_batches,
        )
        check_option(
            self.evaluate_epochs > 0, "evaluate_epochs", "more than 0", self.evaluate_epochs
        )

    def on_this_machine(self) -> "ResNetConfig":
        """Returns the config with the precision that suits this machine, if it is "auto"."""
        from rl_replicator.layers import precision  # Imports TensorFlow.

        name: Any = precision.resolve(self.precision)
        return dataclasses.replace(self, precision=name)

    def resolved(self) -> Any:
        """Returns a config with defaults for the data set in place of None, except `data_dir`."""
        suits = _BY_DATA[self.data] | {
            "learning_rate": {"momentum": 0.1, "lars": 1.0}[self.optimizer]
        }
        missing = {name: value for name, value in suits.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing)
