"""Random shifts of pictures: the one augmentation that D4PG from pixels needs."""

import tensorflow as tf


def random_shift(frames: tf.Tensor, seed: tf.Tensor, most: int) -> tf.Tensor:
    """Moves every picture by whole pixels; what comes in at a border repeats the border.

    DrQ (Kostrikov et al. 2020, arXiv:2004.13649): pad by `most` and crop at random. All frames of a
    stack move together.

    Args:
      frames: [B, H, W, C] of any dtype, H and W known.
      seed: [2] int32, of `tf.random.stateless_uniform`.
      most: pixels in each direction; each shift in between is equally likely.

    Returns:
      As `frames`.
    """
    batch, (height, width, channels) = tf.shape(frames)[0], frames.shape[1:]
    shifts = tf.random.stateless_uniform([batch, 2], seed, -most, most + 1, tf.int32)
    rows = tf.clip_by_value(tf.range(height) + shifts[:, :1], 0, height - 1)  # [B, H]
    columns = tf.clip_by_value(tf.range(width) + shifts[:, 1:], 0, width - 1)  # [B, W]
    # One gather of whole pixels. Several times as fast as cropping each picture for itself.
    first = tf.range(batch)[:, None] * height * width
    pixels = (first + rows * width)[:, :, None] + columns[:, None, :]  # [B, H, W]
    return tf.gather(tf.reshape(frames, [-1, channels]), pixels)
