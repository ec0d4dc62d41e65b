"""Batches of which a fixed share is recorded: two tables on each of two servers."""

import time

import numpy as np
import pytest
import reverb
import tensorflow as tf

from agents.replay.config import ReplayConfig
from agents.replay.priorities import PriorityWriter
from agents.replay.table import LearnerDemand, make_input_fn, make_tables
from agents.replay.transitions import RECORDED, TABLE, TransitionLayout
from rl_replicator.errors import ConfigError
from tests.agents.fixed_samples import make_spec

LAYOUT = TransitionLayout(make_spec(1, 1))
CONFIG = ReplayConfig(min_size=6, samples_per_insert=8_000.0, priority_exponent=1.0)
DEMAND = LearnerDemand(global_batch_size=8, steps_per_call=1, num_replicas=1)
FRACTION = 0.25
# The priorities of the items of each table of each server; all observations differ.
PRIORITIES = {
    (0, TABLE): [1.0, 3.0, 4.0],
    (1, TABLE): [2.0, 2.0, 1.0],
    (0, RECORDED): [1.0, 9.0],
    (1, RECORDED): [1.0, 1.0, 3.0, 5.0],
}
ORDER = [(0, TABLE)] + [(1, TABLE)] + 3 * [(0, RECORDED)] + 3 * [(1, RECORDED)]
TOTALS = {TABLE: 6, RECORDED: 6}


def place(value):
    """The table of an observation, and its item."""
    return list(PRIORITIES)[value // 10], value % 10


@pytest.fixture
def servers():
    servers = [reverb.Server(make_tables(CONFIG, DEMAND, LAYOUT, 2, FRACTION)) for _ in range(2)]
    for number, ((server, table), priorities) in enumerate(PRIORITIES.items()):
        client = servers[server].localhost_client()
        with client.trajectory_writer(num_keep_alive_refs=1) as writer:
            for index, priority in enumerate(priorities):
                writer.append(np.full(LAYOUT.width, 10 * number + index, np.float32))
                writer.create_item(table, priority, writer.history[-1])
                writer.flush()
    yield servers
    for server in servers:
        server.stop()


def test_batches_and_priorities_keep_to_their_tables(servers):
    addresses = [f"localhost:{server.port}" for server in servers]
    counts = {part: np.zeros(len(priorities)) for part, priorities in PRIORITIES.items()}
    for sample in make_input_fn(addresses, LAYOUT, DEMAND, FRACTION)(None).take(400):
        drawn = sample.transition.observation[:, 0].numpy().astype(int)
        assert [place(value)[0] for value in drawn] == ORDER
        np.testing.assert_array_equal(sample.table_size, [TOTALS[table] for _, table in ORDER])
        for value, probability in zip(drawn, sample.probabilities.numpy(), strict=True):
            part, index = place(value)
            # Among the items of both tables of this name.
            expected = PRIORITIES[part][index] / sum(PRIORITIES[part]) / 2
            assert probability == pytest.approx(expected)
            counts[part][index] += 1
    for part, found in counts.items():
        wanted = np.array(PRIORITIES[part]) / sum(PRIORITIES[part])
        deviation = np.sqrt(wanted * (1 - wanted) / found.sum())
        assert (np.abs(found / found.sum() - wanted) < 6 * deviation).all(), (found, wanted)

    writer = PriorityWriter(addresses, FRACTION)
    writer.write([(sample.keys[None], tf.cast(drawn[None] + 100, tf.float32))])
    writer.close()
    for server, table in PRIORITIES:
        wanted = {value: value + 100 for value in drawn if place(value)[0] == (server, table)}
        assert wanted
        deadline = time.monotonic() + 60
        while True:
            seen = {
                int(np.ravel(item[0].data)[0]): item[0].info.priority
                for item in servers[server].localhost_client().sample(table, num_samples=100)
            }
            if {value: seen.get(value) for value in wanted} == wanted:
                break
            assert time.monotonic() < deadline, (seen, wanted)


def test_the_learner_takes_as_many_steps_as_without_recorded_transitions():
    alone, (own, recorded) = (
        make_tables(CONFIG, DEMAND, LAYOUT, 2, fraction) for fraction in (1.0, FRACTION)
    )
    (alone,) = alone
    # A quarter of each batch, and thus of the samples of a learner step.
    assert own.info.rate_limiter_info.samples_per_insert == 2_000
    assert alone.info.rate_limiter_info.samples_per_insert == 8_000
    assert recorded.info.rate_limiter_info.min_size_to_sample == 1
    assert recorded.info.max_size == own.info.max_size == alone.info.max_size


@pytest.mark.parametrize("fraction", [0.1, 0.9])
def test_a_fraction_without_a_transition_of_each_kind_is_refused(fraction):
    """A server gives 4 transitions to a batch."""
    with pytest.raises(ConfigError, match=f"a fraction of the 4 transitions .*, got {fraction}$"):
        make_tables(CONFIG, DEMAND, LAYOUT, 2, fraction)
