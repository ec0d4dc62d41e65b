"""Random numbers differ between replicas, and repeat with the seed.

tests/conformance/multi_worker_program.py tests that they differ between processes.
"""

import functools

import numpy as np
import tensorflow as tf

import rl_replicator as rr


def draw(replicator, seed):
    tf.random.set_seed(seed)

    def step_fn(x):
        del x

        def mask(_=None):
            return tf.nn.dropout(tf.ones([32]), 0.5)

        two = tf.constant([0, 1])
        dropout = [
            mask(),
            tf.cond(tf.reduce_sum(two) > 0, mask, mask),
            *tf.unstack(
                tf.map_fn(mask, two, parallel_iterations=1, fn_output_signature=tf.float32)
            ),
            tf.function(mask)(),
        ]
        with_seed = tf.random.stateless_uniform([4], rr.collectives.replica_seed([seed, 7]))
        return tf.stack(dropout), with_seed

    inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1))
    return replicator.gather(replicator.replicate(step_fn, inputs, steps_per_call=3)())


def test_random_numbers():
    make = functools.partial(rr.make, "multi_device:2")
    try:
        dropout, stateless = draw(make(), 1)  # [N, 3, 5, 32] and [N, 3, 4]
        again, _ = draw(make(), 1)
        other, _ = draw(make(), 2)
    finally:
        tf.random.set_seed(None)
    np.testing.assert_array_equal(dropout, again)
    assert (dropout != other).any()
    for place in range(5):
        masks = {tuple(mask) for mask in dropout[:, :, place].reshape(-1, 32).tolist()}
        assert len(masks) == dropout.shape[0] * 3, place  # Of all replicas and steps.
    for replica, numbers in enumerate(stateless):
        expected = tf.random.stateless_uniform(
            [4], tf.random.experimental.stateless_fold_in([1, 7], replica)
        )
        np.testing.assert_array_equal(numbers, [expected] * 3)
