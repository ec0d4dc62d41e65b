"""Steps that XLA compiles. That they compute the same, tests/conformance/test_equality.py holds."""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr


def make_step(step_fn, **options):
    replicator = rr.make("single_device:xla")
    data = tf.data.Dataset.range(8, output_type=tf.float32).batch(4)
    inputs = replicator.make_inputs(lambda context: data)
    return replicator.replicate(step_fn, inputs, **options)


@pytest.mark.parametrize("options", [{}, {"steps_per_call": 2}])
@pytest.mark.parametrize("after", [None, "mesh:data=2"])
def test_an_operation_that_xla_lacks_is_named(options, after):
    if after:  # A variable on a mesh changes how TensorFlow compiles from then on.
        with rr.make(after).scope():
            tf.Variable(tf.zeros([2]))
    step = make_step(lambda x: tf.strings.to_number(tf.strings.as_string(x)), **options)
    with pytest.raises(rr.ConfigError, match="that XLA compiles, got AsString; move") as error:
        step()
    assert "\n" not in str(error.value)


def number(x):
    return x[0]


def text(x):
    return x[1]


@pytest.mark.parametrize("step_fn", [number, text])
def test_strings_are_named(step_fn):
    replicator = rr.make("single_device:xla")
    data = tf.data.Dataset.range(8).map(lambda x: (x, tf.strings.as_string(x)))
    step = replicator.replicate(step_fn, replicator.make_inputs(lambda context: data))
    with pytest.raises(rr.ConfigError, match="XLA compiles, got strings or other types"):
        step()


def test_other_errors_and_the_end_of_the_data_are_those_of_any_step():
    step = make_step(lambda x: x + 1, steps_per_call=3)
    np.testing.assert_array_equal(step(), [[1, 2, 3, 4], [5, 6, 7, 8]])
    with pytest.raises(rr.EndOfData):
        step()
