"""Every hyper-parameter of the classifier."""

import dataclasses
from typing import Any, Literal

from rl_replicator.errors import check_option

# What depends on the data, for the data sets that are known.
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

    A setting that is None becomes what suits the data.
    """

    data: Literal["fashion_mnist", "cifar10", "imagenet"] = "fashion_mnist"
    """Data set; imagenet is any folder of TFRecord files with images, see docs/learners.md."""
    data_dir: str | None = None
    """Folder of the data. Fashion-MNIST has one of its own where Debian's package is installed."""
    depth: Literal[18, 34, 50, 101] | None = None
    """Layers of the network."""
    width: int | None = None
    """Channels of its first stage."""
    stem: Literal["imagenet", "small"] | None = None
    """First layers: for images of about 224x224, or of about 32x32."""
    image_size: int | None = None
    """Height and width to which images of TFRecord files are brought."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type in which the layers compute; auto is bfloat16 where the machine is fast at it."""
    epochs: float | None = None
    """How often each image is seen."""
    global_batch_size: int | None = None
    """Images in a step, over all replicas."""
    micro_batches: int = 1
    """Parts of a replica's batch whose gradients are added up; more parts need less memory."""
    optimizer: Literal["momentum", "lars"] = "momentum"
    """Nesterov's momentum, or layer-wise adaptive rates for large batches."""
    learning_rate: float | None = None
    """Peak for a batch of 256; scaled with the batch. 0.1 for momentum, 1.0 for lars."""
    schedule: Literal["cosine", "step"] = "cosine"
    """How the learning rate falls: half a wave, or by ten after 1/3, 2/3 and 8/9 of the run."""
    warm_up_epochs: float | None = None
    """Epochs in which the learning rate rises from 0."""
    momentum: float = 0.9
    """Share of the velocity that is kept."""
    weight_decay: float | None = None
    """L2 penalty of all weights but those of norms and biases."""
    label_smoothing: float | None = None
    """Probability mass that is spread over all classes."""
    cross_replica_norm: bool = False
    """Take batch statistics over all replicas, and not in each alone."""
    evaluate_epochs: float = 1.0
    """Epochs from one evaluation to the next."""
    seed: int = 1
    """Of weights, order and variation of the images."""

    def __post_init__(self) -> None:
        for name in ("width", "global_batch_size", "micro_batches", "epochs", "learning_rate"):
            value = getattr(self, name)
            check_option(value is None or value > 0, name, "more than 0", value)
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

    def resolved(self) -> Any:
        """A config with the settings that suit the data in place of every None but `data_dir`."""
        suits = _BY_DATA[self.data] | {
            "learning_rate": {"momentum": 0.1, "lars": 1.0}[self.optimizer]
        }
        missing = {name: value for name, value in suits.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing)
