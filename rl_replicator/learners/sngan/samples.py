"""Noise and classes for the generator, and a grid of its images."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from rl_replicator import collectives
from rl_replicator.step.inputs import InputContext

_ROWS = 10
_COLUMNS = 10
_BORDER = 2
_WHITE = 255
# Added to a seed, so that each use has its own stream.
DISCRIMINATOR, GENERATOR, _LABELS, _EVALUATION, _GRID = (i << 40 for i in range(5))


def draw(
    batch_size: int, noise_size: int, num_classes: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws this replica's part of the noise and the labels for one update.

    Every replica draws for all replicas and takes its own part. So the images of all replicas
    together do not depend on the number of replicas.

    Args:
      batch_size: number of images per replica, B.
      noise_size: size of the noise vector, Z.
      num_classes: number of classes, K; all are equally likely.
      seed: [2] int64: the seed of the run and the number of the update.

    Returns:
      Standard normal noise, [B, Z] float32, and labels, [B] int32.
    """
    total = batch_size * collectives.num_replicas()
    noise = tf.random.stateless_normal([total, noise_size], seed)
    labels = tf.random.stateless_uniform(
        [total], seed + tf.constant([_LABELS, 0], tf.int64), maxval=num_classes, dtype=tf.int32
    )
    start = collectives.replica_id() * batch_size
    own = tf.slice(noise, [start, 0], [batch_size, noise_size])
    return own, tf.slice(labels, [start], [batch_size])


def evaluation_data(
    context: InputContext,
    global_batch_size: int,
    count: int,
    noise_size: int,
    num_classes: int,
    seed: int,
) -> tf.data.Dataset:
    """Returns this pipeline's part of `count` fixed pairs of noise and label.

    Args:
      context: the pipeline.
      global_batch_size: number of pairs in a batch, over all replicas.
      count: number of pairs, over all pipelines; their labels cycle through the classes.
      noise_size: size of the noise vector, Z.
      num_classes: number of classes, K.
      seed: seed of the run.

    Returns:
      A finite dataset of batches: noise, [B, Z] float32, and labels, [B] int32.
    """
    noise = tf.random.stateless_normal([count, noise_size], [seed + _EVALUATION, 0])
    labels = tf.range(count) % num_classes
    data = tf.data.Dataset.from_tensor_slices((noise, labels))
    return context.shard(data.batch(context.per_replica_batch_size(global_batch_size)))


def grid(
    generate: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    noise_size: int,
    num_classes: int,
    seed: int,
) -> np.ndarray:
    """Returns a grid of images: a row for each of the first ten classes, a column per noise vector.

    Args:
      generate: maps noise, [B, Z] float32, and labels, [B] int32, to images, [B, H, W, C] uint8.
      noise_size: size of the noise vector, Z.
      num_classes: number of classes, K.
      seed: seed of the noise.

    Returns:
      [height, width, C] uint8.
    """
    rows = min(num_classes, _ROWS)
    noise = tf.random.stateless_normal([_COLUMNS, noise_size], [seed + _GRID, 0])
    images = generate(tf.tile(noise, [rows, 1]), tf.repeat(tf.range(rows), _COLUMNS)).numpy()
    images = np.pad(
        images,
        [(0, 0), (0, _BORDER), (0, _BORDER), (0, 0)],
        constant_values=_WHITE,
    )
    height, width, channels = images.shape[1:]
    grid = images.reshape(rows, _COLUMNS, height, width, channels).transpose(0, 2, 1, 3, 4)
    whole = grid.reshape(rows * height, _COLUMNS * width, channels)
    return whole[:-_BORDER, :-_BORDER]
