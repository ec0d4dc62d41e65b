"""Outputs of several steps: stacked exactly, in few arrays."""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.step import output_arrays

BATCH = 3


def outputs_of(x):
    """Small and large outputs, of known and of unknown shapes, of all kinds of types."""
    number = tf.cast(x[0], tf.float32)
    return [
        number / 3,
        tf.cast(x[0], tf.uint64) + 2**63,
        tf.fill([2], number),
        tf.strings.as_string(x[0]),
        x[0] % 2 == 0,
        -number,  # Shares an array with the first.
        tf.fill([2, 1], number),
        tf.fill([2], number + 0.5),  # Shares an array with the third.
        tf.range(2000) + tf.cast(x[0], tf.int32),
        -tf.range(2000) - tf.cast(x[0], tf.int32),
        tf.fill([tf.shape(x)[0]], number),
        tf.fill([tf.shape(x)[0]], -number),
        tf.cast(number, tf.bfloat16),
    ]


@pytest.mark.parametrize(("name", "is_known"), [("single_device", False), ("multi_device:2", True)])
def test_outputs_are_those_of_single_steps(name, is_known):
    replicator = rr.make(name)
    data = tf.data.Dataset.range(14 * BATCH).batch(BATCH, drop_remainder=is_known)
    steps = [
        replicator.replicate(outputs_of, replicator.make_inputs(lambda context: data), count)
        for count in (None, 5)
    ]
    size = 14 // replicator.num_replicas
    singles = [replicator.gather(steps[0]()) for _ in range(size)]
    for begin in range(0, size, 5):
        got = replicator.gather(steps[1]())  # The last call ends early.
        for index, x in enumerate(got):
            want = np.stack([single[index] for single in singles[begin : begin + 5]], axis=1)
            assert x.dtype == want.dtype or x.dtype == object  # Strings.
            np.testing.assert_array_equal(x, want)
    with pytest.raises(rr.EndOfData):
        steps[1]()


def test_no_steps_and_no_outputs():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def stacked(x):
        outputs = [x[0], x[1], x]
        arrays = output_arrays.OutputArrays(outputs)
        return arrays.stack(arrays.make(5), tf.constant(0))

    assert [x.shape for x in stacked(tf.zeros([2]))] == [[0], [0], [0, 0]]
    nothing = output_arrays.OutputArrays([])
    assert nothing.stack(nothing.make(5), tf.constant(0)) == []


def test_outputs_of_different_shapes_cannot_be_stacked():
    replicator = rr.make("multi_device:2")
    sizes = np.repeat([2, 2, 2, 3], replicator.num_replicas)
    inputs = replicator.make_inputs(
        lambda context: context.shard(tf.data.Dataset.from_tensor_slices(sizes))
    )
    step = replicator.replicate(lambda size: tf.zeros([size]), inputs, 2)
    assert replicator.local_results(step())[0].shape == (2, 2)
    with pytest.raises(
        rr.ConfigError, match=r"same shape in all steps .* leave steps_per_call out"
    ):
        step()
