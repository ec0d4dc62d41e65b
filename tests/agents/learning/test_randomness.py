"""The seeds of the random numbers in a learner's steps."""

import tensorflow as tf

from agents.learning.randomness import StepSeeds


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
