"""Noise and classes to make images of, and the picture of some images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from rl_replicator import collectives
from rl_replicator.step.inputs import InputContext

_ROWS = 10
_COLUMNS = 10
_BORDER = 2
_WHITE = 255
# Added to a seed: what each use draws is another stream.
DISCRIMINATOR, GENERATOR, _LABELS, _EVALUATION, _PICTURE = (i << 40 for i in range(5))


def draw(
    batch_size: int, noise_size: int, num_classes: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """This replica's part of what all replicas make images of, for one update.

    Every replica draws for all and takes its own: so the images of all are the same ones however
    many replicas there are.

    Args:
      batch_size: of a replica.
      noise_size: Z.
      num_classes: K; each is as likely as the others.
      seed: [2] int64, of the run and of the update.

    Returns:
      [B, Z] float32 from a standard normal distribution, [B] int32.
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
    """This pipeline's part of `count` pairs of noise and label, always the same ones.

    The classes take turns.
    """
    noise = tf.random.stateless_normal([count, noise_size], [seed + _EVALUATION, 0])
    labels = tf.range(count) % num_classes
    data = tf.data.Dataset.from_tensor_slices((noise, labels))
    return context.shard(data.batch(context.per_replica_batch_size(global_batch_size)))


def picture(
    generate: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    noise_size: int,
    num_classes: int,
    seed: int,
) -> np.ndarray:
    """A row of ten images for each class (the first ten), from the same noise in every row.

    Args:
      generate: [B, Z] float32 noise, [B] int32 labels -> [B, H, W, C] uint8.
      noise_size: Z.
      num_classes: K.
      seed: of the noise.

    Returns:
      [height, width, C] uint8.
    """
    rows = min(num_classes, _ROWS)
    noise = tf.random.stateless_normal([_COLUMNS, noise_size], [seed + _PICTURE, 0])
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


def write(image: np.ndarray, step: int, directory: Path) -> None:
    """Writes `samples/<step>.png` in the run's directory, and the same for TensorBoard."""
    import tensorboardX

    path = directory / "samples" / f"{step:07d}.png"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(tf.io.encode_png(image).numpy())
    with tensorboardX.SummaryWriter(str(directory / "tensorboard" / "samples")) as board:
        board.add_image("samples", image, step, dataformats="HWC")
