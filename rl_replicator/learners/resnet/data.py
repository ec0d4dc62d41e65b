"""The classifier's input: data sets, their order, and their augmentation.

Batches are (images, labels): [B, H, W, C] uint8 and [B] int32. Order and augmentation are functions
of the seed and of an example's position in the run, so a resumed run sees the same data as an
uninterrupted one.
"""

import abc
import functools
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.learners import image_records, small_images
from rl_replicator.step.inputs import InputContext

# Size of the shuffle buffer in examples: 0.9 GB of ImageNet.
_SHUFFLE_BUFFER = 8192
# Pixels by which a small image may shift, after padding with black: He et al. 2015, section 4.2.
_SHIFT = 4
# Added to a seed for a second stream of random numbers: two draws from one seed would be equal.
_ANOTHER_STREAM = (1 << 40, 0)


class Images(abc.ABC):
    """Training and evaluation data.

    Attributes:
      num_train: number of training examples.
      num_classes: number of classes.
      mean: mean of each channel, [C] float32, on a scale of 0 to 255.
      deviation: standard deviation of each channel, [C] float32, on the same scale.
      image_shape: height, width, channels.
    """

    num_train: int
    num_classes: int
    mean: np.ndarray
    deviation: np.ndarray
    image_shape: tuple[int, ...]

    @abc.abstractmethod
    def train(self, context: InputContext, global_batch_size: int, start: int) -> tf.data.Dataset:
        """Returns this input pipeline's endless training batches.

        Args:
          context: the pipeline.
          global_batch_size: number of examples in a batch, over all replicas.
          start: number of global batches to skip.

        Returns:
          A dataset of (images, labels) with the per-replica batch size.
        """

    @abc.abstractmethod
    def evaluate(self, context: InputContext, global_batch_size: int) -> tf.data.Dataset:
        """Returns this input pipeline's shard of the evaluation data, each example once.

        Args:
          context: the pipeline.
          global_batch_size: number of examples in a batch, over all replicas.

        Returns:
          A finite dataset of (images, labels) with at most the per-replica batch size.
        """


class MemoryImages(Images):
    """Images in memory, with flips and shifts.

    The global batches are the same for any number of replicas.
    """

    def __init__(self, data: small_images.SmallImages, seed: int):
        """Computes the statistics of the channels.

        Args:
          data: images and labels.
          seed: seed of order and augmentation.
        """
        self._data = data
        self._seed = seed
        self.num_train = len(data.train_labels)
        self.num_classes = data.num_classes
        self.image_shape = data.train_images.shape[1:]
        self.mean = data.train_images.mean(axis=(0, 1, 2), dtype=np.float64).astype(np.float32)
        spread = data.train_images.std(axis=(0, 1, 2), dtype=np.float64)
        self.deviation = spread.astype(np.float32)

    def train(self, context: InputContext, global_batch_size: int, start: int) -> tf.data.Dataset:
        size = context.per_replica_batch_size(global_batch_size)
        epoch, rest = divmod(start * global_batch_size, self.num_train)
        order = tf.data.Dataset.range(epoch, np.iinfo(np.int64).max).flat_map(self._epoch)
        batches = order.skip(rest).batch(size, drop_remainder=True)
        images = tf.constant(self._data.train_images)
        labels = tf.constant(self._data.train_labels)

        def load(index: tf.Tensor, variation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return self.augment(tf.gather(images, index), variation), tf.gather(labels, index)

        return _prefetched(context.shard(batches).map(load, tf.data.AUTOTUNE))

    def evaluate(self, context: InputContext, global_batch_size: int) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((self._data.test_images, self._data.test_labels))
        size = context.per_replica_batch_size(global_batch_size)
        return _prefetched(context.shard(data.batch(size)))

    def augment(self, images: tf.Tensor, variation: tf.Tensor) -> tf.Tensor:
        """Augments training images; see the function `augment`. May be overridden."""
        return augment(images, variation)

    def _epoch(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """Returns shuffled indices of all examples, each with three random numbers in [0, 1)."""
        seed = tf.stack([tf.constant(self._seed, tf.int64), epoch])
        order = tf.random.experimental.stateless_shuffle(tf.range(self.num_train), seed)
        variations = tf.random.stateless_uniform([self.num_train, 3], seed + _ANOTHER_STREAM)
        return tf.data.Dataset.from_tensor_slices((order, variations))


class RecordImages(Images):
    """Images in TFRecord files, with random windows and flips. Each pipeline reads its own files.

    The global batches depend on the number of input pipelines, because each shuffles its own files.
    """

    # The usual statistics of ImageNet's training images, in RGB.
    mean = np.array([123.68, 116.78, 103.94], np.float32)
    deviation = np.array([58.39, 57.12, 57.38], np.float32)

    def __init__(self, folder: Path, size: int, seed: int):
        """Finds the files and counts their records.

        Args:
          folder: see `image_records.find`.
          size: height and width of the images.
          seed: seed of order and augmentation.

        Raises:
          ConfigError: if files are missing or damaged.
        """
        self._folder = folder
        self._size = size
        self._seed = seed
        self._records = image_records.find(folder, "train")
        self.num_train = self._records.num_examples
        self.num_classes = image_records.num_classes(folder)
        self.image_shape = (size, size, 3)

    def train(self, context: InputContext, global_batch_size: int, start: int) -> tf.data.Dataset:
        if len(self._records.files) < context.num_input_pipelines:
            raise errors.ConfigError(
                f"expected at least {context.num_input_pipelines} training files, one for each "
                f"process, found {len(self._records.files)}; split them, or use fewer processes"
            )
        size = context.per_replica_batch_size(global_batch_size)
        # An epoch is a whole number of batches, so that a resumed run can skip it unread.
        batches_per_epoch = max(1, self.num_train // global_batch_size)
        share = global_batch_size // context.num_input_pipelines
        epoch, rest = divmod(start, batches_per_epoch)
        epochs = tf.data.Dataset.range(epoch, np.iinfo(np.int64).max)
        examples = epochs.flat_map(
            lambda number: self._epoch(context, number, batches_per_epoch * share)
        ).skip(rest * share)
        decoded = examples.map(self._augmented, tf.data.AUTOTUNE, deterministic=True)
        return _prefetched(decoded.batch(size, drop_remainder=True))

    def evaluate(self, context: InputContext, global_batch_size: int) -> tf.data.Dataset:
        records = image_records.find(self._folder, "validation")

        def load(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            encoded, label = records.parse(record)
            window = functools.partial(image_records.central_window, size=self._size)
            return image_records.decode(encoded, window, self._size), label

        size = context.per_replica_batch_size(global_batch_size)
        examples = context.shard(image_records.read(records))
        return _prefetched(examples.map(load, tf.data.AUTOTUNE).batch(size))

    def window(self, shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Chooses the window of a training image. May be overridden.

        Args:
          shape: shape of the image, [3] int32.
          seed: [2] int64.

        Returns:
          [4] int32: top, left, height, width.
        """
        return image_records.random_window(shape, seed)

    def _epoch(self, context: InputContext, number: tf.Tensor, count: int) -> tf.data.Dataset:
        """Returns `count` shuffled examples of an epoch, each with its position in the run."""
        seed = tf.constant(self._seed, tf.int64) + number

        def shuffled_part(files: tf.data.Dataset) -> tf.data.Dataset:
            return context.shard(files.shuffle(len(self._records.files), seed))

        records = image_records.read(self._records, shuffled_part)
        # A pipeline's files may hold fewer than `count` examples, because shards differ in size.
        records = records.shuffle(_SHUFFLE_BUFFER, seed).repeat().take(count)
        first = (number * context.num_input_pipelines + context.input_pipeline_id) * count
        return tf.data.Dataset.zip((records, tf.data.Dataset.range(first, first + count)))

    def _augmented(self, record: tf.Tensor, place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label = self._records.parse(record)
        seed = tf.stack([tf.constant(self._seed, tf.int64), place])
        image = image_records.decode(encoded, lambda shape: self.window(shape, seed), self._size)
        flips = tf.random.stateless_uniform([], seed + _ANOTHER_STREAM) < 0.5
        return tf.cond(flips, lambda: image[:, ::-1], lambda: image), label


def load(
    config: Any,
    small: type[MemoryImages] = MemoryImages,
    records: type[RecordImages] = RecordImages,
) -> Images:
    """Opens the data set that a resolved config names.

    Args:
      config: resolved config; `data`, `data_dir`, `image_size` and `seed` are used.
      small: class for data sets in memory.
      records: class for data sets in TFRecord files.

    Returns:
      The data set.

    Raises:
      UsageError: if the data is missing or damaged.
    """
    folder = config.data_dir
    if config.data == "fashion_mnist":
        return small(small_images.fashion_mnist(folder), config.seed)
    if config.data == "cifar10":
        return small(small_images.cifar10(folder), config.seed)
    if folder is None:
        raise errors.ConfigError(
            "--data-dir: expected the folder of the TFRecord files, got none; name it"
        )
    return records(folder, config.image_size, config.seed)


def augment(images: tf.Tensor, variation: tf.Tensor) -> tf.Tensor:
    """Shifts each image by up to four pixels in each direction, and flips half of the images.

    Args:
      images: [B, H, W, C] uint8.
      variation: [B, 3] float32 in [0, 1): vertical shift, horizontal shift, and whether to flip
        (below 0.5).

    Returns:
      [B, H, W, C] uint8.
    """
    height, width = images.shape[1:3]
    shifts = tf.cast(variation[:, :2] * (2 * _SHIFT + 1), tf.int32)  # [B, 2]
    rows = shifts[:, :1] + tf.range(height)  # [B, H], indices in the padded image.
    columns = shifts[:, 1:] + tf.range(width)  # [B, W]
    columns = tf.where(variation[:, 2:] < 0.5, columns[:, ::-1], columns)
    border = [_SHIFT, _SHIFT]
    padded = tf.pad(images, [[0, 0], border, border, [0, 0]])
    return tf.gather(tf.gather(padded, rows, batch_dims=1), columns, axis=2, batch_dims=1)


def _prefetched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.prefetch(tf.data.AUTOTUNE)
