"""Training images without the classifier's augmentation: the generator would reproduce it."""

from typing import Any

import tensorflow as tf

from rl_replicator.learners import image_records
from rl_replicator.learners.resnet import data


class _Small(data.MemoryImages):
    """Images in memory, without shifts and flips."""

    def augment(self, images: tf.Tensor, variation: tf.Tensor) -> tf.Tensor:
        return images


class _Records(data.RecordImages):
    """The central squares of images in files, with flips."""

    def window(self, shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return image_records.central_window(shape, self._size)


def load(config: Any) -> data.Images:
    """Opens the data set that a resolved config names; see `resnet.data.load`."""
    return data.load(config, _Small, _Records)
