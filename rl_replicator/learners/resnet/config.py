"""Hyper-parameters of the classifier."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from rl_replicator.learners.image_config import ImageConfig

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
class ResNetConfig(ImageConfig):
    """Train a ResNet v1.5 to classify images.

    The default of a setting that is None depends on the data set.
    """

    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Dtype in which the layers compute; auto is bfloat16 if this machine computes it fast. A run
    keeps its initial dtype."""
    depth: Literal[18, 34, 50, 101] | None = None
    """Number of layers of the network."""
    stem: Literal["imagenet", "small"] | None = None
    """First layers: for images of about 224x224 (imagenet) or 32x32 (small)."""
    epochs: float | None = None
    """Number of times that each image is seen."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = "micro_batches epochs learning_rate evaluate_epochs"
        self.check(positive, "more than 0", lambda value: value > 0)
        if self.data == "imagenet":
            self.check("image_size", "more than 0", lambda size: size > 0)
        self.check("weight_decay warm_up_epochs", "at least 0", lambda value: value >= 0)
        below_1 = "a number from 0 to below 1"
        self.check("momentum label_smoothing", below_1, lambda value: 0 <= value < 1)
        if self.cross_replica_norm:
            expected = "1 with --cross-replica-norm, as replicas do not meet between micro-batches"
            self.check("micro_batches", expected, lambda value: value == 1)

    def defaults(self) -> Mapping[str, Any]:
        rate = {"momentum": 0.1, "lars": 1.0}[self.optimizer]
        return _BY_DATA[self.data] | {"learning_rate": rate}
