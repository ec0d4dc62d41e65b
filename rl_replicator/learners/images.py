"""Training and evaluation data of images: their order, and their augmentation.

Batches are (images, labels): [B, H, W, C] uint8 and [B] int32. Order and augmentation are functions
of the seed and of an example's position in the run, so a resumed run sees the same data as an
uninterrupted one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.learners import image_files
from rl_replicator.step.inputs.contract import InputContext

# Size of the shuffle buffer in examples: 0.9 GB of ImageNet.
_SHUFFLE_BUFFER = 8192
# Pixels by which a small image may shift, after padding with black: He et al. 2015, section 4.2.
_SHIFT = 4
# Added to a seed for a second stream of random numbers: two draws from one seed would be equal.
_ANOTHER_STREAM = (1 << 40, 0)

# Maps images, [B, H, W, C] uint8, and three random numbers in [0, 1) for each to augmented images.
Augment = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# Maps the shape of an image, [3] int32, the side to which the window will be resized, and a seed,
# [2] int64, to a window, [4] int32: top, left, height, width.
Window = Callable[[tf.Tensor, int, tf.Tensor], tf.Tensor]


class MemoryImages:
    """Images in memory. The global batches are the same for any number of replicas.

    Attributes:
      num_train: number of training examples.
      num_classes: number of classes.
      mean: mean of each channel, [C] float32, on a scale of 0 to 255.
      deviation: standard deviation of each channel, [C] float32, on the same scale.
      image_shape: height, width, channels.
    """

    num_classes = 10

    def __init__(
        self,
        train: image_files.Labelled,
        test: image_files.Labelled,
        seed: int,
        augment: Augment,
    ):
        """Computes the statistics of the channels.

        Args:
          train: training images and labels.
          test: test images and labels.
          seed: seed of order and augmentation.
          augment: augments training images.
        """
        self._train, self._test, self._seed, self._augment = train, test, seed, augment
        images, labels = train
        self.num_train, self.image_shape = len(labels), images.shape[1:]
        self.mean = images.mean(axis=(0, 1, 2), dtype=np.float64).astype(np.float32)
        self.deviation = images.std(axis=(0, 1, 2), dtype=np.float64).astype(np.float32)

    def train(self, context: InputContext, global_batch_size: int, start: int) -> tf.data.Dataset:
        """Returns this input pipeline's endless training batches.

        Args:
          context: the pipeline.
          global_batch_size: number of examples in a batch, over all replicas.
          start: number of global batches to skip.

        Returns:
          A dataset of (images, labels) with the per-replica batch size.
        """
        size = context.per_replica_batch_size(global_batch_size)
        epoch, rest = divmod(start * global_batch_size, self.num_train)
        order = tf.data.Dataset.range(epoch, np.iinfo(np.int64).max).flat_map(self._epoch)
        batches = context.shard(order.skip(rest).batch(size, drop_remainder=True))
        images, labels = map(tf.constant, self._train)

        def load(index: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return self._augment(tf.gather(images, index), numbers), tf.gather(labels, index)

        return batches.map(load, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def evaluate(self, context: InputContext, global_batch_size: int) -> tf.data.Dataset:
        """Returns this input pipeline's shard of the evaluation data, each example once.

        Args:
          context: the pipeline.
          global_batch_size: number of examples in a batch, over all replicas.

        Returns:
          A finite dataset of (images, labels) with at most the per-replica batch size.
        """
        data = tf.data.Dataset.from_tensor_slices(self._test)
        size = context.per_replica_batch_size(global_batch_size)
        return context.shard(data.batch(size)).prefetch(tf.data.AUTOTUNE)

    def _epoch(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """Returns shuffled indices of all examples, each with three random numbers in [0, 1)."""
        seed = tf.stack([tf.constant(self._seed, tf.int64), epoch])
        order = tf.random.experimental.stateless_shuffle(tf.range(self.num_train), seed)
        numbers = tf.random.stateless_uniform([self.num_train, 3], seed + _ANOTHER_STREAM)
        return tf.data.Dataset.from_tensor_slices((order, numbers))


class RecordImages:
    """Images in TFRecord files, with flips. Each pipeline reads its own files.

    It has the attributes and methods of `MemoryImages`.

    The global batches depend on the number of input pipelines, because each shuffles its own files.
    """

    num_classes = image_files.NUM_CLASSES
    # The usual statistics of ImageNet's training images, in RGB.
    mean = np.array([123.68, 116.78, 103.94], np.float32)
    deviation = np.array([58.39, 57.12, 57.38], np.float32)

    def __init__(self, folder: Path, size: int, seed: int, window: Window):
        """Finds the files and counts their records.

        Args:
          folder: see `image_files.find`.
          size: height and width of the images.
          seed: seed of order and augmentation.
          window: chooses the window of a training image.

        Raises:
          UsageError: if files are missing or damaged.
        """
        self._folder, self._size, self._seed, self._window = folder, size, seed, window
        self._records = image_files.find(folder, "train")
        self.num_train = self._records.num_examples
        self.image_shape = (size, size, 3)

    def train(self, context: InputContext, global_batch_size: int, start: int) -> tf.data.Dataset:
        """See `MemoryImages`."""
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
        return decoded.batch(size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    def evaluate(self, context: InputContext, global_batch_size: int) -> tf.data.Dataset:
        """See `MemoryImages`."""
        records = image_files.find(self._folder, "validation")
        no_seed = tf.zeros([2], tf.int64)

        def load(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            encoded, label = records.parse(record)
            return decode(encoded, central_window, self._size, no_seed), label

        size = context.per_replica_batch_size(global_batch_size)
        examples = context.shard(_read(tf.data.Dataset.from_tensor_slices(list(records.files))))
        return examples.map(load, tf.data.AUTOTUNE).batch(size).prefetch(tf.data.AUTOTUNE)

    def _epoch(self, context: InputContext, number: tf.Tensor, count: int) -> tf.data.Dataset:
        """Returns `count` shuffled examples of an epoch, each with its position in the run."""
        # The seed of this function's graph, in place of the global one: if that is 0, TensorFlow
        # compares the tensor `seed` in Python, which fails.
        tf.compat.v1.set_random_seed(1)
        seed = tf.constant(self._seed, tf.int64) + number
        names = list(self._records.files)
        files = tf.data.Dataset.from_tensor_slices(names).shuffle(len(names), seed)
        # A pipeline's files may hold fewer than `count` examples, because shards differ in size.
        records = _read(context.shard(files)).shuffle(_SHUFFLE_BUFFER, seed).repeat().take(count)
        first = (number * context.num_input_pipelines + context.input_pipeline_id) * count
        return tf.data.Dataset.zip((records, tf.data.Dataset.range(first, first + count)))

    def _augmented(self, record: tf.Tensor, place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label = self._records.parse(record)
        seed = tf.stack([tf.constant(self._seed, tf.int64), place])
        image = decode(encoded, self._window, self._size, seed)
        return tf.image.stateless_random_flip_left_right(image, seed + _ANOTHER_STREAM), label


def _read(files: tf.data.Dataset) -> tf.data.Dataset:
    """Reads serialised examples from several files in parallel, in a deterministic order."""
    return files.interleave(
        tf.data.TFRecordDataset,
        cycle_length=image_files.CYCLE_LENGTH,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def load(config: Any, augment: Augment, window: Window) -> MemoryImages | RecordImages:
    """Opens the data set that a resolved config names.

    Args:
      config: a resolved `ImageConfig`; `data`, `data_dir`, `image_size` and `seed` are used.
      augment: augments training images in memory.
      window: chooses the window of a training image in TFRecord files.

    Raises:
      UsageError: if the data is missing or damaged.
    """
    folder = config.data_dir
    if config.data == "fashion_mnist":
        return MemoryImages(*image_files.fashion_mnist(folder), config.seed, augment)
    if config.data == "cifar10":
        return MemoryImages(*image_files.cifar10(folder), config.seed, augment)
    if folder is None:
        raise errors.ConfigError(
            "--data-dir: expected the folder of the TFRecord files, got none; name it"
        )
    return RecordImages(folder, config.image_size, config.seed, window)


def shifted_and_flipped(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Shifts each image by up to four pixels in each direction, and flips half of the images.

    Args:
      images: [B, H, W, C] uint8.
      numbers: [B, 3] float32 in [0, 1): vertical shift, horizontal shift, and whether to flip
        (below 0.5).

    Returns:
      [B, H, W, C] uint8.
    """
    height, width = images.shape[1:3]
    shifts = tf.cast(numbers[:, :2] * (2 * _SHIFT + 1), tf.int32)  # [B, 2]
    rows = shifts[:, :1] + tf.range(height)  # [B, H], indices in the padded image.
    columns = shifts[:, 1:] + tf.range(width)  # [B, W]
    columns = tf.where(numbers[:, 2:] < 0.5, columns[:, ::-1], columns)
    border = [_SHIFT, _SHIFT]
    padded = tf.pad(images, [[0, 0], border, border, [0, 0]])
    return tf.gather(tf.gather(padded, rows, batch_dims=1), columns, axis=2, batch_dims=1)


def unchanged(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Returns the images: no augmentation."""
    del numbers
    return images


def random_window(shape: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Draws a window with 8 % to 100 % of the image's area and an aspect ratio from 3:4 to 4:3.

    Szegedy et al. 2014 (arXiv:1409.4842), section 6. For the arguments, see `Window`.
    """
    del size
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.zeros([1, 0, 4]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], extent[:2]], axis=0)


def central_window(shape: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns the central square. For the arguments, see `Window`.

    Resizing this window to `size` equals resizing the image's shorter side to `size * 8 / 7` and
    cropping the centre: 224 of 256 pixels, as in He et al. 2015 (arXiv:1512.03385), section 3.4.
    """
    del seed
    side = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32)
    cut = tf.cast(tf.round(side * (size / (size + size // 7))), tf.int32)
    return tf.stack([(shape[0] - cut) // 2, (shape[1] - cut) // 2, cut, cut])


def decode(encoded: tf.Tensor, choose: Window, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Decodes a window of an image and resizes it. Only the window of a JPEG is decoded.

    Args:
      encoded: JPEG or PNG, a scalar string.
      choose: chooses the window.
      size: height and width of the result.
      seed: seed of the choice.

    Returns:
      [size, size, 3] uint8.
    """

    def crop_jpeg() -> tf.Tensor:
        window = choose(tf.io.extract_jpeg_shape(encoded), size, seed)
        return tf.io.decode_and_crop_jpeg(encoded, window, channels=3)

    def crop_png() -> tf.Tensor:
        image = tf.io.decode_png(encoded, channels=3)
        window = choose(tf.shape(image), size, seed)
        return tf.image.crop_to_bounding_box(image, *tf.unstack(window))

    image = tf.cond(tf.io.is_jpeg(encoded), crop_jpeg, crop_png)
    image = tf.image.resize(image, [size, size])  # Bilinear, float32.
    return tf.cast(tf.round(image), tf.uint8)
