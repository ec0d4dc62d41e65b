"""Checks of updates, and rows with one index."""

import math

import numpy as np
import pytest
import tensorflow as tf

from rl_replicator.optimizers import updates


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize("indices", [[], [4], [3, 1, 3, 3], [2, 0, 1]])
def test_rows_with_one_index_are_summed(indices, shape):
    """This also holds if they are merged again."""
    values = np.arange(1, 1 + len(indices) * math.prod(shape), dtype=np.float32)
    values = values.reshape(len(indices), *shape)
    merged = tf.IndexedSlices(tf.constant(values), tf.constant(indices, tf.int64), [5, *shape])
    expected = np.zeros([5, *shape], np.float32)
    np.add.at(expected, np.array(indices, int), values)
    for _ in range(2):
        merged = updates.merge_rows(merged)
        sums, found = merged.values.numpy(), merged.indices.numpy()
        assert len(sums) == len(found) == len(indices) and set(found) == set(indices)
        for i in set(indices):  # One row has the sum, and the others are 0.
            first, *rest = sums[found == i]
            np.testing.assert_array_equal(first, expected[i])
            assert not np.any(rest)


def test_other_updates_have_no_rows():
    assert updates.merge_rows(None) is None


@pytest.mark.parametrize(("device", "expected"), [("/GPU:1", True), ("/CPU:0", False), ("", False)])
def test_the_graph_says_whether_rows_are_on_a_gpu(device, expected):
    with tf.Graph().as_default(), tf.device(device):
        assert (
            updates.is_on_gpu(tf.IndexedSlices(tf.zeros([1]), tf.zeros([1], tf.int32))) == expected
        )


def test_some_parameters_may_have_no_update():
    updates.check([None, tf.constant(1.0)], [tf.Variable(1.0), tf.Variable(2.0)])


def test_what_does_not_belong_together_is_refused():
    variable = tf.Variable(1.0, name="weight")
    with pytest.raises(ValueError, match="same length, got 0 and 1"):
        updates.check([], [variable])
    with pytest.raises(ValueError, match="at least one parameter, got none"):
        updates.check([], [])
    with pytest.raises(ValueError, match="for at least one parameter, got None for all"):
        updates.check([None], [variable])
    with pytest.raises(ValueError, match="'weight:0' with dtype float32, got float64"):
        updates.check([tf.constant(1.0, tf.float64)], [variable])
