"""Stacks and random shifts by hand."""

import numpy as np
import tensorflow as tf

from agents.networks.encoders import random_shift, shift, stacked


def test_a_shift_by_hand():
    frames = tf.reshape(tf.range(6), [1, 1, 2, 3, 1])  # [[0, 1, 2], [3, 4, 5]]
    moved = shift(frames, tf.constant([[1, -1]]))
    assert moved[0, :, :, 0].numpy().tolist() == [[3, 3, 4], [3, 3, 4]]


def test_frames_are_stacked_along_channels_the_oldest_first():
    frames = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 6, 2), dtype=np.uint8)
    expected = np.concatenate([frames[:, 0], frames[:, 1], frames[:, 2]], axis=-1)
    np.testing.assert_array_equal(stacked(tf.constant(frames)), expected)
    unmoved = shift(tf.constant(frames), tf.zeros([5, 2], tf.int32))
    np.testing.assert_array_equal(unmoved, expected)


def test_a_shift_moves_whole_pictures_and_repeats_their_borders():
    random = np.random.default_rng(0)
    frames = random.integers(0, 256, (400, 3, 5, 6, 2), dtype=np.uint8)
    shifted = random_shift(tf.constant(frames), tf.constant([1, 2]), max_shift=2).numpy()
    assert shifted.shape == (400, 5, 6, 6) and shifted.dtype == np.uint8
    found = set()
    stacks = np.concatenate([frames[:, i] for i in range(3)], axis=-1)
    padded = np.pad(stacks, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="edge")
    for before, after in zip(padded, shifted, strict=True):
        crops = {
            (y, x) for y in range(5) for x in range(5)
            if np.array_equal(before[y : y + 5, x : x + 6], after)
        }  # fmt: skip
        assert len(crops) == 1
        found |= crops
    assert len(found) == 25  # Every shift, in 400 draws.
    again = random_shift(tf.constant(frames), tf.constant([1, 2]), max_shift=2)
    np.testing.assert_array_equal(again, shifted)
    other = random_shift(tf.constant(frames), tf.constant([1, 3]), max_shift=2)
    assert (other.numpy() != shifted).any()
