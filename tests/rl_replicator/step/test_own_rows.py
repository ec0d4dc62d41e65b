"""Methods that read or change rows of variables work on several replicas as on one."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import collectives

ROWS = np.arange(1.0, 17.0, dtype=np.float32).reshape(8, 2)
PLACES = [0, 3, 1, 5]
UNIQUE = [[0], [3], [1], [5]]


def slices(x, places=PLACES):
    return tf.IndexedSlices(x, tf.constant(places))


# Functions of a variable [6, 2] and the four rows of a step.
METHODS = {
    "scatter_add": lambda v, x: v.scatter_add(slices(x, [0, 3, 3, 5])),
    "scatter_sub": lambda v, x: v.scatter_sub(slices(x, [0, 3, 3, 5])),
    "scatter_mul": lambda v, x: v.scatter_mul(slices(x)),
    "scatter_div": lambda v, x: v.scatter_div(slices(x)),
    "scatter_min": lambda v, x: v.scatter_min(slices(x - 8)),
    "scatter_max": lambda v, x: v.scatter_max(slices(x)),
    "scatter_update": lambda v, x: v.scatter_update(slices(x)),
    "scatter_nd_add": lambda v, x: v.scatter_nd_add([[0], [3], [3], [5]], x),
    "scatter_nd_sub": lambda v, x: v.scatter_nd_sub([[0], [3], [3], [5]], x),
    "scatter_nd_update": lambda v, x: v.scatter_nd_update(UNIQUE, x),
    "batch_scatter_update": lambda v, x: v.batch_scatter_update(
        slices(tf.reshape(x[:3], [6, 1]), [[0], [1]] * 3)
    ),
    "in a cond": lambda v, x: tf.cond(x[0, 0] > 5, lambda: v.scatter_add(slices(x)), v.read_value),
    "in a function": lambda v, x: tf.function(lambda y: v.scatter_add(slices(y)))(x),
    "sparse_read": lambda v, x: v.assign_add(tf.concat([x, v.sparse_read([2, 5])], 0)),
    "gather_nd": lambda v, x: v.assign_add(tf.concat([x, v.gather_nd([[2], [5]])], 0)),
}


@functools.cache
def replicator(name):
    return rr.make(name)


def batches(context):
    size = context.per_replica_batch_size(4)
    return tf.data.Dataset.from_tensor_slices(ROWS).batch(size)


def after_two_steps(name, method):
    """The values of the variable, and what the method returned in each step."""
    with replicator(name).scope():
        variable = tf.Variable(tf.ones([6, 2]))

    def step_fn(x):
        result = method(variable, tf.reshape(collectives.all_gather(x), [4, 2]))
        return tf.convert_to_tensor(result)

    step_fn = tf.autograph.experimental.do_not_convert(step_fn)
    step = replicator(name).replicate(step_fn, replicator(name).make_inputs(batches))
    outputs = [replicator(name).gather(step()) for _ in range(2)]
    copies = [copy.numpy() for copy in getattr(variable, "values", (variable,))]
    for copy in copies[1:]:
        np.testing.assert_array_equal(copy, copies[0])
    return copies[0], [output[0] for output in outputs]


@pytest.mark.parametrize("name", METHODS)
def test_several_replicas_do_what_one_does(name):
    method = METHODS[name]
    expected, results = after_two_steps("single_device", method)
    assert np.any(expected != 1)
    got, others = after_two_steps("multi_device:2", method)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(others, results)


def test_count_up_to():
    chosen = replicator("multi_device:2")
    with chosen.scope():
        count = tf.Variable(3)
    step = chosen.replicate(
        lambda x: count.count_up_to(10), chosen.make_inputs(batches), steps_per_call=2
    )
    assert chosen.gather(step()).tolist() == [[3, 4], [3, 4]]
    assert count.numpy() == 5


def test_a_gradient_through_rows():
    chosen = replicator("multi_device:2")
    with chosen.scope():
        table = tf.Variable(tf.ones([6, 2]))

    def step_fn(x):
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.square(tf.gather(table, [1, 4])) * x)
        return tape.gradient(y, table)

    step = chosen.replicate(step_fn, chosen.make_inputs(batches))
    expected = np.zeros([2, 6, 2], np.float32)
    expected[:, [1, 4]] = 2 * ROWS[:4].reshape(2, 2, 2)
    np.testing.assert_array_equal(chosen.gather(step()), expected)


def test_outside_of_steps():
    with replicator("multi_device:2").scope():
        variable = tf.Variable(ROWS, name="bank")
    for read in (variable.sparse_read([3, 1]), tf.gather(variable, [3, 1])):
        np.testing.assert_array_equal(read, ROWS[[3, 1]])
    for read in (variable.gather_nd([[3, 1]]), tf.gather_nd(variable, [[3, 1]])):
        np.testing.assert_array_equal(read, ROWS[3, 1:])
    for method in (METHODS["scatter_add"], METHODS["scatter_nd_update"]):
        with pytest.raises(rr.ConfigError, match=r"of 'bank:0' inside a step, .* use assign"):
            method(variable, ROWS[:4])
