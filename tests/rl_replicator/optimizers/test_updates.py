"""Checks of updates, and rows with one index."""

import numpy as np
import pytest
import tensorflow as tf

from rl_replicator.optimizers import updates


def test_rows_with_one_index_are_summed():
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([3, 0, 3]), [5, 1])
    merged = updates.merge_rows(rows)
    assert sorted(merged.indices.numpy()) == [0, 3]
    dense = tf.convert_to_tensor(merged).numpy()
    np.testing.assert_array_equal(dense, [[2.0], [0.0], [0.0], [5.0], [0.0]])
    assert updates.merge_rows(None) is None


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
