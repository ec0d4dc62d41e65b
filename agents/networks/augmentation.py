"""Random shifts of frames, the augmentation of DrQ."""

import tensorflow as tf

from agents.learning.randomness import uniform_integers


def random_shift(frames: tf.Tensor, seed: tf.Tensor, max_shift: int) -> tf.Tensor:
    """Shifts every observation of a replica's batch by whole pixels, at random.

    DrQ (Kostrikov et al. 2020, arXiv:2004.13649): pad by `max_shift` and crop at random.

    Args:
      frames: [B, H, W, C] of any dtype, H and W known.
      seed: [2] int32, equal on all replicas.
      max_shift: pixels in each direction; all shifts are equally likely.

    Returns:
      As `frames`.
    """
    return shift(
        frames, uniform_integers([tf.shape(frames)[0], 2], -max_shift, max_shift + 1, seed)
    )


def shift(frames: tf.Tensor, shifts: tf.Tensor) -> tf.Tensor:
    """Moves every observation by whole pixels; the border is repeated.

    All frames of a stack move together.

    Args:
      frames: [B, H, W, C] of any dtype, H and W known.
      shifts: [B, 2] int32; pixel (y, x) of the result is pixel (y, x) + shift of `frames`.

    Returns:
      As `frames`.
    """
    batch, (height, width, channels) = tf.shape(frames)[0], frames.shape[1:]
    rows = tf.clip_by_value(tf.range(height) + shifts[:, :1], 0, height - 1)  # [B, H]
    columns = tf.clip_by_value(tf.range(width) + shifts[:, 1:], 0, width - 1)  # [B, W]
    # One gather of whole pixels is several times as fast as a crop for each observation.
    first = tf.range(batch)[:, None] * height * width
    pixels = (first + rows * width)[:, :, None] + columns[:, None, :]  # [B, H, W]
    return tf.gather(tf.reshape(frames, [-1, channels]), pixels)
