"""Stacks of frames along channels, and their random shifts, the augmentation of DrQ."""

import tensorflow as tf

from rl_replicator.collectives.randomness import uniform_integers


def stacked(frames: tf.Tensor) -> tf.Tensor:
    """Stacks frames along channels: [B, S, H, W, C] -> [B, H, W, S * C], the oldest first."""
    stack, height, width, channels = frames.shape[1:]
    last = tf.transpose(frames, [0, 2, 3, 1, 4])
    return tf.reshape(last, [-1, height, width, stack * channels])


def random_shift(frames: tf.Tensor, seed: tf.Tensor, max_shift: int) -> tf.Tensor:
    """Shifts every observation of a replica's batch by whole pixels, at random, and stacks it.

    DrQ (Kostrikov et al. 2020, arXiv:2004.13649): pad by `max_shift` and crop at random. All frames
    of a stack move together.

    Args:
      frames: [B, S, H, W, C] of any dtype, all but B known.
      seed: [2] int32, equal on all replicas.
      max_shift: pixels in each direction; all shifts are equally likely.

    Returns:
      [B, H, W, S * C], as from `stacked`.
    """
    return shift(
        frames, uniform_integers([tf.shape(frames)[0], 2], -max_shift, max_shift + 1, seed)
    )


def shift(frames: tf.Tensor, shifts: tf.Tensor) -> tf.Tensor:
    """Moves every observation by whole pixels and stacks it; the border is repeated.

    Args:
      frames: [B, S, H, W, C] of any dtype, all but B known.
      shifts: [B, 2] int32; pixel (y, x) of the result is pixel (y, x) + shift of `frames`.

    Returns:
      [B, H, W, S * C], as from `stacked`.
    """
    batch, (stack, height, width, _) = tf.shape(frames)[0], frames.shape[1:]
    # The time of a gather grows with the number of slices, not with their size. So rows move before
    # the frames are stacked, while a row is one slice, and columns afterwards, when a pixel of all
    # frames is one slice. Besides, with a gather between the cast and the transpose, Grappler
    # cannot swap these two: transposing single bytes is several times slower than numbers of two or
    # four bytes. A mesh does not support tf.newaxis.
    rows = tf.clip_by_value(tf.range(height) + shifts[:, :1], 0, height - 1)  # [B, H]
    first = tf.reshape(tf.range(batch * stack) * height, [batch, stack, 1])
    frames = tf.gather(tf.reshape(frames, [-1, *frames.shape[3:]]), first + tf.expand_dims(rows, 1))
    stacks = stacked(frames)
    columns = tf.clip_by_value(tf.range(width) + shifts[:, 1:], 0, width - 1)  # [B, W]
    first = tf.reshape(tf.range(batch * height) * width, [batch, height, 1])
    return tf.gather(tf.reshape(stacks, [-1, stacks.shape[-1]]), first + tf.expand_dims(columns, 1))
