"""The random numbers in a learner's steps, and their seeds."""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.collectives.randomness import StepSeeds, normal, uniform_integers


def seeds(run):
    """All seeds of a few steps of a run: {(step, stream): seed}."""
    tf.random.set_seed(run)
    step_seed = StepSeeds()
    return {
        (step, stream): tuple(step_seed(tf.constant(step, tf.int64), stream).numpy())
        for step in range(3)
        for stream in range(3)
    }


def test_a_run_repeats_its_seeds():
    assert seeds(run=7) == seeds(run=7)


def test_no_two_uses_share_a_seed():
    drawn = [seed for run in range(3) for seed in seeds(run).values()]
    assert len(set(drawn)) == len(drawn) == 27


def draw(replicator_name):
    """Draws what a step on a global batch of 8 uses: normal numbers and integers, [8, 2]."""
    replicator = rr.make(replicator_name)

    def input_fn(context):
        size = context.per_replica_batch_size(8)
        return tf.data.Dataset.from_tensor_slices(tf.zeros([8, 2])).batch(size, drop_remainder=True)

    @tf.autograph.experimental.do_not_convert
    def step_fn(zeros):  # [B, 2]; on a mesh, numbers that are added to a batch are drawn in parts.
        shape, seed = [tf.shape(zeros)[0], 2], tf.constant([1, 2])
        return (
            zeros + normal(shape, seed),
            tf.cast(zeros, tf.int32) + uniform_integers(shape, 0, 1000, seed),
        )

    step = replicator.replicate(step_fn, replicator.make_inputs(input_fn))
    results = replicator.local_results(step())
    return [np.concatenate(parts) for parts in zip(*results, strict=True)]


def test_replicas_draw_what_one_device_draws():
    for one, two in zip(draw("single_device"), draw("multi_device:2"), strict=True):
        np.testing.assert_array_equal(two, one)


@pytest.mark.parametrize("name", ["mesh:data=2", "mesh:data=4", "mesh:data=2,model=2"])
def test_no_two_devices_of_a_mesh_draw_the_same(name):
    for numbers in draw(name):
        assert numbers.shape == (8, 2) and len(np.unique(numbers)) == 16
