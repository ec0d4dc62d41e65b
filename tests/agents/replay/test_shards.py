"""Several replay servers as one replay: batches, weights, priorities."""

import time

import numpy as np
import pytest
import reverb
import tensorflow as tf

from agents.replay.config import ReplayConfig
from agents.replay.priorities import PriorityWriter
from agents.replay.table import TABLE, LearnerDemand, error_buffer, make_input_fn, make_table
from agents.replay.transitions import TransitionLayout
from rl_replicator.errors import ConfigError
from tests.agents.fixed_samples import make_spec

LAYOUT = TransitionLayout(make_spec(1, 1))
CONFIG = ReplayConfig(min_size=6, samples_per_insert=10_000.0, priority_exponent=1.0)
DEMAND = LearnerDemand(global_batch_size=8, steps_per_call=1, num_replicas=1)
# The priorities of each shard's items, whose observations are 10 * shard + index.
PRIORITIES = [[1.0, 3.0, 4.0], [2.0, 2.0, 1.0, 5.0]]


@pytest.fixture
def servers():
    servers = []
    for shard, priorities in enumerate(PRIORITIES):
        table = make_table(CONFIG, DEMAND, LAYOUT, num_shards=2)
        servers.append(reverb.Server([table]))
        with servers[-1].localhost_client().trajectory_writer(num_keep_alive_refs=1) as writer:
            for index, priority in enumerate(priorities):
                writer.append(np.full(LAYOUT.width, 10 * shard + index, np.float32))
                writer.create_item(TABLE, priority, writer.history[-1])
                writer.flush()
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def addresses(servers):
    return [f"localhost:{server.port}" for server in servers]


def values(sample):
    return sample.transition.observation[:, 0].numpy().astype(int)


def test_the_shards_share_the_limits():
    config = ReplayConfig(max_size=1001, min_size=201).of_shard(2)
    assert (config.max_size, config.min_size) == (501, 101)
    shard = LearnerDemand(256, 16, 2).of_shard(4)
    assert (shard.per_replica_batch_size, shard.transitions_per_call) == (32, 1024)
    with pytest.raises(
        ConfigError, match=r"multiple of 6 \(2 replicas x 3 replay shards\), got 256"
    ):
        LearnerDemand(256, 16, 2).of_shard(3)


def test_too_small_tables_are_refused_with_what_all_of_them_need():
    """Each of 4 tables needs two items of 8 transitions: 16, a quarter of 61 rounded up."""
    demand = LearnerDemand(8, 1, 1)
    fits, less = (ReplayConfig(min_size=size, samples_per_insert=64.0) for size in (61, 60))
    error_buffer(fits, demand, 8, num_shards=4)
    error_buffer(less, demand, 8)  # One table has enough.
    message = (
        r"min-size: expected at least 61 \(a call of the learner takes 8 transitions .*\), got 60; "
        ".* or --replay-shards$"
    )
    with pytest.raises(ConfigError, match=message):
        error_buffer(less, demand, 8, num_shards=4)


def test_a_batch_has_equal_parts_and_the_probabilities_of_the_whole(addresses):
    dataset = make_input_fn(addresses, LAYOUT, DEMAND)(None)
    counts = np.zeros(20)
    for sample in dataset.take(400):
        drawn = values(sample)
        assert (drawn[:4] < 10).all() and (drawn[4:] >= 10).all()
        np.testing.assert_array_equal(sample.table_size, np.full(8, 7))
        for value, probability in zip(drawn, sample.probabilities.numpy(), strict=True):
            shard = PRIORITIES[value // 10]
            assert probability == pytest.approx(shard[value % 10] / sum(shard) / 2)
        np.add.at(counts, drawn, 1)
    for shard, priorities in enumerate(PRIORITIES):
        expected = np.array(priorities) / sum(priorities) / 2
        found = counts[10 * shard : 10 * shard + len(priorities)] / counts.sum()
        np.testing.assert_allclose(found, expected, atol=0.04)


def test_priorities_reach_the_shard_of_their_items(servers, addresses):
    sample = next(iter(make_input_fn(addresses, LAYOUT, DEMAND)(None)))
    writer = PriorityWriter(addresses)
    drawn = values(sample)
    # One call of two steps on one replica, [2, B]; the second one has a single item of each shard.
    rows = np.array([range(8), [0] * 4 + [4] * 4])
    writer.write([(tf.gather(sample.keys, rows), tf.cast(drawn[rows] + 100, tf.float32))])
    writer.close()
    for shard, server in enumerate(servers):
        wanted = {value: value + 100 for value in drawn if value // 10 == shard}
        assert wanted
        deadline = time.monotonic() + 60
        while True:
            seen = {
                int(np.ravel(item[0].data)[0]): item[0].info.priority
                for item in server.localhost_client().sample(TABLE, num_samples=200)
            }
            if {value: seen.get(value) for value in wanted} == wanted:
                break
            assert time.monotonic() < deadline, (seen, wanted)
