"""The spread of returns against NumPy's of all returns seen so far."""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from agents.learning.value_scale import ReturnScale
from tests.agents.actor_critic_reference import batches

BATCH = 32
# The greatest return decides in the second batch, the deviation in the others.
BATCHES = np.zeros([3, BATCH])
BATCHES[0] = np.random.default_rng(0).normal(size=BATCH)
BATCHES[1, 7] = -90.0
BATCHES[2] = np.where(np.arange(BATCH) % 2, 60.0, -60.0)


def make_step(replicator, returns):
    with replicator.scope():
        scale = ReturnScale()
    inputs = replicator.make_inputs(batches(returns.astype(np.float32), BATCH))
    return scale, replicator.replicate(scale, inputs, 1)


@pytest.mark.parametrize("replicator_name", ["single_device", "multi_device:2"])
def test_the_scale_is_that_of_all_returns(replicator_name):
    replicator = rr.make(replicator_name)
    scale, step = make_step(replicator, BATCHES.ravel())
    found, expected = [], []
    for number in range(1, 4):
        found.append([float(x[0]) for x in replicator.local_results(step())])
        seen = BATCHES[:number]
        expected.append([max(seen.std(), np.abs(seen).max() / 5)] * replicator.num_replicas)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert expected[1][0] == 18 and not scale.trainable_variables


def test_without_rewards_it_is_positive():
    assert 0 < float(ReturnScale()(tf.zeros([4]))) < 1e-6


def test_the_copies_of_two_replicas_stay_equal():
    """`replicate` compares them after the first, the 10th and the 100th step."""
    spread = np.linspace(1, 80, 200 * BATCH)
    _, step = make_step(
        rr.make("multi_device:2"), np.random.default_rng(0).permutation(spread) * spread
    )
    for _ in range(100):
        step()
