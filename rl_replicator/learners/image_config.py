"""The settings that learners from images share."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from rl_replicator.errors import check_option

# Data sets in memory, whose images keep their size: 0, or this many pixels, is accepted.
_SIDES = {"fashion_mnist": 28, "cifar10": 32}


@dataclasses.dataclass(frozen=True)
class ImageConfig:
    """Base class. The default of a setting that is None depends on the data set."""

    data: Literal["fashion_mnist", "cifar10", "imagenet"] = "fashion_mnist"
    """Data set; imagenet is any folder of TFRecord files with images, see docs/learners.md."""
    data_dir: Path | None = None
    """Directory of the data. Default for Fashion-MNIST: the directory of Debian's package."""
    image_size: int | None = None
    """Height and width to which images of TFRecord files are resized."""
    width: int | None = None
    """Number of channels in the layers with the highest resolution."""
    precision: str = "auto"
    """Dtype in which the layers compute; auto is bfloat16 if this machine computes it fast. A run
    keeps its initial dtype."""
    global_batch_size: int | None = None
    """Images in a step, over all replicas."""
    seed: int = 1
    """Seed of everything random: the weights, the order of the images, augmentation and noise."""

    def __post_init__(self) -> None:
        self.check("width global_batch_size", "more than 0", lambda value: value > 0)
        if self.data in _SIDES:
            expected = f"none with --data {self.data}, whose images keep their size"
            self.check("image_size", expected, lambda size: size in (0, _SIDES[self.data]))

    def check(self, names: str, expected: str, is_good: Callable[[Any], bool]) -> None:
        """Raises `ConfigError` if one of some settings is neither None nor good.

        Args:
          names: names of the settings, separated by spaces.
          expected: description of good values.
          is_good: whether a value is good.
        """
        for name in names.split():
            value = getattr(self, name)
            check_option(value is None or is_good(value), name, expected, value)

    def defaults(self) -> Mapping[str, Any]:
        """Returns the values of settings that are None, except for paths."""
        raise NotImplementedError

    def on_this_machine(self) -> Any:
        """Returns the config with the precision that suits this machine, if it is "auto"."""
        from rl_replicator.layers import precision  # Imports TensorFlow.

        return dataclasses.replace(self, precision=precision.resolve(self.precision))

    def resolved(self) -> Any:
        """Returns a config with `defaults` in place of None."""
        suits = self.defaults()
        missing = {name: value for name, value in suits.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing)
