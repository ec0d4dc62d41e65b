"""The limiter's tolerance, prioritized sampling, and priorities on their way back."""

import dataclasses
import threading
import time

import numpy as np
import pytest
import reverb

from agents.learning.losses import importance_weights
from agents.replay.config import ReplayConfig
from agents.replay.priorities import PriorityWriter
from agents.replay.table import TABLE, LearnerDemand, error_buffer, make_table
from agents.replay.transitions import TransitionLayout
from rl_replicator.errors import ConfigError
from tests.agents.fixed_samples import make_spec


def test_the_buffer_holds_a_call_and_all_that_is_in_flight():
    demand = LearnerDemand(global_batch_size=256, steps_per_call=16, num_replicas=2)
    assert demand.per_replica_batch_size == 128
    assert demand.transitions_per_call == 4096
    assert demand.transitions_in_flight(1) == 8 * 256
    config = ReplayConfig(min_size=1000, samples_per_insert=64.0)
    assert error_buffer(config, demand, 1) == 2 * (4096 + 8 * 256)
    # It is at least two inserts, and at least a tenth of the minimum size, or 100 rows if less.
    late = dataclasses.replace(config, min_size=5_000, samples_per_insert=256.0)
    assert error_buffer(late, demand, 1) == 100 * 256
    tenth = dataclasses.replace(config, min_size=500, samples_per_insert=256.0)
    assert error_buffer(tenth, demand, 1) == 50 * 256
    small = dataclasses.replace(config, min_size=10)
    assert error_buffer(small, LearnerDemand(1, 1, 1), 1) == 2 * 64


@pytest.mark.parametrize(("exponent", "prioritized"), [(0.0, False), (0.6, True)])
def test_a_table_without_an_exponent_samples_uniformly(layout, exponent, prioritized):
    config = ReplayConfig(priority_exponent=exponent)
    options = make_table(config, LearnerDemand(1, 1, 1), layout).info.sampler_options
    assert options.HasField("prioritized") == prioritized
    assert options.HasField("uniform") != prioritized


def test_a_limiter_that_would_block_is_refused_with_the_number_that_would_not():
    demand = LearnerDemand(global_batch_size=256, steps_per_call=16, num_replicas=1)
    with pytest.raises(ConfigError, match="expected at least 192") as error:
        error_buffer(ReplayConfig(min_size=10, samples_per_insert=64.0), demand, 1)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith("raise it, or lower --agent.steps-per-call")
    error_buffer(ReplayConfig(min_size=192, samples_per_insert=64.0), demand, 1)


def test_a_batch_that_replicas_do_not_divide_is_refused():
    with pytest.raises(ConfigError, match="multiple of 3 replicas, got 256"):
        LearnerDemand(256, 1, 3)


def insert(server, layout, priorities):
    client = server.localhost_client()
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        for i, priority in enumerate(priorities):
            writer.append(np.full(layout.width, i, np.float32))
            writer.create_item(TABLE, priority, writer.history[-1])
            writer.flush()
    return client


def draw(client, count):
    """`count` independent draws: [(value, info)]."""
    return [
        (int(np.ravel(sample[0].data)[0]), sample[0].info)
        for sample in client.sample(TABLE, num_samples=count)
    ]


@pytest.fixture
def layout():
    return TransitionLayout(make_spec(1, 1))


@pytest.fixture
def server(layout):
    demand = LearnerDemand(global_batch_size=1, steps_per_call=1, num_replicas=1)
    config = ReplayConfig(min_size=3, samples_per_insert=10_000.0, priority_exponent=0.5)
    server = reverb.Server([make_table(config, demand, layout)])
    yield server
    server.stop()


def test_probabilities_and_weights_follow_the_priorities(server, layout):
    # alpha 0.5: 1, 4, 16 -> 1, 2, 4 -> P = 1/7, 2/7, 4/7.
    client = insert(server, layout, [1.0, 4.0, 16.0])
    drawn = draw(client, 3000)
    expected = np.array([1, 2, 4]) / 7
    counts = np.bincount([value for value, _ in drawn], minlength=3)
    np.testing.assert_allclose(counts / 3000, expected, atol=0.05)  # 5.5 deviations.
    for value, info in drawn[:50]:
        np.testing.assert_allclose(info.probability, expected[value], rtol=1e-6)
    probabilities = np.array([info.probability for _, info in drawn[:50]])
    weights = importance_weights(probabilities, np.full(50, 3), 1.0).numpy()
    by_hand = np.array([7 / 3, 7 / 6, 7 / 12])  # 1 / (3 P)
    np.testing.assert_allclose(weights, by_hand[[value for value, _ in drawn[:50]]], rtol=1e-5)


@pytest.mark.parametrize("lowest", [0.0, np.inf])
def test_priorities_reach_the_table(server, layout, lowest):
    client = insert(server, layout, [1.0, 1.0, 1.0])
    keys = {value: info.key for value, info in draw(client, 100)}
    writer = PriorityWriter([f"localhost:{server.port}"])
    writer.write(
        [
            (np.array([[keys[0], keys[1]]], np.uint64), np.array([[9.0, 4.0]], np.float32)),
            (np.array([[keys[2], keys[2]]], np.uint64), np.array([[16.0, lowest]], np.float32)),
        ]
    )
    writer.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        seen = {value: info.priority for value, info in draw(client, 200)}
        if seen.get(0) == 9.0:
            break
    # The last priority wins. The writer replaces a priority that is 0 or not finite by a small one,
    # with which an item is drawn about 19 times in 3,000.
    seen = {value: info.priority for value, info in draw(client, 3000)}
    assert seen == {0: 9.0, 1: 4.0, 2: pytest.approx(1e-3)}
    assert writer.num_dropped_batches == 0


def test_a_full_queue_drops_its_oldest_batch(monkeypatch):
    """The newest priorities are the most accurate: they come from the learner's newest weights."""
    is_busy, may_go_on, written = threading.Event(), threading.Event(), []

    class SlowTable:
        def __init__(self, address, name):
            pass

        def update_priorities(self, table, keys, priorities):
            is_busy.set()
            may_go_on.wait(60)
            written.extend(keys.numpy())

    monkeypatch.setattr(reverb, "TFClient", SlowTable)
    writer = PriorityWriter(["localhost:1"])
    for key in range(12):
        writer.write([(np.array([key], np.uint64), np.ones(1, np.float32))])
        assert is_busy.wait(60)  # With the first batch; eight more fit into the queue.
    may_go_on.set()
    writer.close()
    assert written == [0, 4, 5, 6, 7, 8, 9, 10, 11] and writer.num_dropped_batches == 3


def test_an_error_of_the_table_reaches_the_learner(caplog):
    other = reverb.Table.queue("other", max_size=1)
    server = reverb.Server([other])
    writer = PriorityWriter([f"localhost:{server.port}"])
    deadline = time.monotonic() + 60
    with pytest.raises(RuntimeError, match="could not be written") as error:
        while time.monotonic() < deadline:
            writer.write([(np.zeros(1, np.uint64), np.ones(1, np.float32))])
            time.sleep(0.01)
    assert TABLE in str(error.value.__cause__)
    writer = PriorityWriter([f"localhost:{server.port}"])
    writer.write([(np.zeros(1, np.uint64), np.ones(1, np.float32))])
    writer.close()  # No further `write` could raise the error.
    assert "the last priorities were not written to the replay: " in caplog.text
    server.stop()
