"""The limits of several replay servers; test_mixed.py tests their batches and priorities."""

import pytest

from agents.replay.config import ReplayConfig
from agents.replay.table import LearnerDemand, error_buffer
from rl_replicator.errors import ConfigError


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
