"""The limiter's tolerance, prioritized sampling, and priorities on their way back."""

import threading
import time

import numpy as np
import pytest
import reverb
from acme import specs

from agents.config import one_by_one
from agents.d4pg.config import PAPER, D4PGConfig, PixelD4PGConfig
from agents.learning.losses import importance_weights
from agents.replay.config import ReplayConfig
from agents.replay.frames import FrameLayout
from agents.replay.priorities import PriorityWriter
from agents.replay.table import TABLE, LearnerDemand, error_buffer, make_table
from agents.replay.transitions import TransitionLayout, transitions_per_item
from rl_replicator.errors import ConfigError
from tests.agents.fixed_samples import make_spec

LARGE = LearnerDemand(global_batch_size=256, steps_per_call=16, num_replicas=1)
SMALL = LearnerDemand(1, 1, 1)


@pytest.mark.parametrize(
    ("min_size", "samples_per_insert", "demand", "length", "expected"),
    [
        # Twice a call and all that is in flight: one draw in the sampler, one that is handed out,
        # and batches on their way to the step.
        (1_000, 64.0, LARGE, 1, 2 * (4096 + 8 * 256)),
        (1_000, 64.0, LARGE, 8, 2 * (4096 + 19 * 256)),
        # At least a tenth of the minimum size, or 100 rows if less, and at least two items.
        (5_000, 256.0, LARGE, 1, 100 * 256),
        (500, 256.0, LARGE, 1, 50 * 256),
        (10, 64.0, SMALL, 1, 2 * 64),
        (50, 1_000.0, SMALL, 8, 2 * 1_000 * 8),
    ],
)
def test_the_tolerance_of_a_limiter(min_size, samples_per_insert, demand, length, expected):
    config = ReplayConfig(min_size=min_size, samples_per_insert=samples_per_insert)
    assert error_buffer(config, demand, length) == expected


def test_limits_count_items():
    config = ReplayConfig(max_size=1001, min_size=201, samples_per_insert=500.0)
    info = make_table(config, LARGE, TransitionLayout(make_spec(1, 1), (), 4)).info
    limiter = info.rate_limiter_info
    assert (info.max_size, limiter.min_size_to_sample) == (251, 51)
    assert limiter.samples_per_insert == 500.0
    buffer = error_buffer(config, LARGE, 4) / 4
    assert limiter.max_diff - 51 * 500 == pytest.approx(buffer)
    assert 51 * 500 - limiter.min_diff == pytest.approx(buffer)


def test_shards_share_limits_and_batches():
    config = ReplayConfig(max_size=1001, min_size=201).of_shard(2)
    assert (config.max_size, config.min_size) == (501, 101)
    shard = LearnerDemand(256, 16, 2).of_shard(4)
    assert (shard.per_replica_batch_size, shard.transitions_per_call) == (32, 1024)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LearnerDemand(256, 1, 3), "multiple of 3 replicas, got 256"),
        (
            lambda: LearnerDemand(256, 16, 2).of_shard(3),
            r"multiple of 6 \(2 replicas x 3 replay shards\), got 256",
        ),
        (
            lambda: error_buffer(ReplayConfig(min_size=191, samples_per_insert=64.0), LARGE, 1),
            "expected at least 192 .*; raise it, or lower --agent.steps-per-call$",
        ),
        (  # Each of 4 tables needs two items of 8 transitions: 16, a quarter of 61 rounded up.
            lambda: error_buffer(ReplayConfig(min_size=60), LearnerDemand(8, 1, 1), 8, 4),
            r"at least 61 \(a call of the learner takes 8 .*\), got 60; .* or --replay-shards$",
        ),
        (
            lambda: error_buffer(ReplayConfig(min_size=6), LearnerDemand(8, 1, 1), 2, 2),
            "lower --agent.steps-per-call or --agent.replay.transitions-per-item or "
            "--replay-shards$",
        ),
    ],
)
def test_what_would_block_is_refused_with_what_would_not(make, message):
    with pytest.raises(ConfigError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_what_is_just_enough_is_accepted():
    error_buffer(ReplayConfig(min_size=192, samples_per_insert=64.0), LARGE, 1)
    error_buffer(ReplayConfig(min_size=61), LearnerDemand(8, 1, 1), 8, num_shards=4)
    error_buffer(ReplayConfig(min_size=60), LearnerDemand(8, 1, 1), 8)  # One table has enough.


@pytest.mark.parametrize(("exponent", "prioritized"), [(0.0, False), (0.6, True)])
def test_a_table_without_an_exponent_samples_uniformly(layout, exponent, prioritized):
    config = ReplayConfig(priority_exponent=exponent)
    options = make_table(config, LearnerDemand(1, 1, 1), layout).info.sampler_options
    assert options.HasField("prioritized") == prioritized
    assert options.HasField("uniform") != prioritized


def test_which_tables_have_items_of_several_transitions():
    assert ReplayConfig().item_length == 8
    assert ReplayConfig(priority_exponent=0.6).item_length == 1
    assert one_by_one(D4PGConfig()).replay.item_length == 1
    assert one_by_one(object()).__class__ is object
    assert PAPER.replay.item_length == 1 and PixelD4PGConfig().replay.item_length == 8
    frames = make_spec(specs.Array((4, 4, 3), np.uint8), 1)
    for length in (1, 3):
        rows = TransitionLayout(make_spec(1, 1), (), length)
        for layout in (rows, FrameLayout(frames, 3, 2, 4, (), length)):
            assert transitions_per_item(layout.signature) == length


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


def test_priorities_reach_the_table(server, layout):
    client = insert(server, layout, [1.0, 1.0, 1.0])
    keys = {value: info.key for value, info in draw(client, 100)}
    writer = PriorityWriter([f"localhost:{server.port}"])
    writer.write(
        [
            (np.array([[keys[0], keys[1]]], np.uint64), np.array([[9.0, np.inf]], np.float32)),
            (np.array([[keys[2], keys[2]]], np.uint64), np.array([[16.0, 0.0]], np.float32)),
        ]
    )
    writer.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        seen = {value: info.priority for value, info in draw(client, 200)}
        if seen.get(0) == 9.0:
            break
    # The last priority wins. The writer replaces a priority that is 0 or not finite by a small one,
    # with which an item is drawn about 31 times in 3,000.
    seen = {value: info.priority for value, info in draw(client, 3000)}
    assert seen == {0: 9.0, 1: pytest.approx(1e-3), 2: pytest.approx(1e-3)}
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
