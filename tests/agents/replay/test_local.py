"""The replay of deterministic runs."""

import numpy as np
import pytest
from acme import specs

from agents.replay.config import ReplayConfig
from agents.replay.local import LocalQueue, LocalReplay, PriorityTree
from agents.replay.table import LearnerDemand, make_table
from agents.replay.transitions import TransitionLayout
from environments import fakes

LAYOUT = TransitionLayout(specs.make_environment_spec(fakes.Chain()))
DEMAND = LearnerDemand(global_batch_size=4, steps_per_call=2, num_replicas=1)
CONFIG = ReplayConfig(min_size=40, max_size=50, samples_per_insert=2.0, priority_exponent=0.5)


def make_replay(config=CONFIG, rows=0, seed=1):
    replay = LocalReplay(make_table(config, DEMAND, LAYOUT).info, seed)
    writer = replay.trajectory_writer(num_keep_alive_refs=8)
    for number in range(rows):
        writer.append(np.full(LAYOUT.width, number, np.float32))
        writer.create_item("replay", 1.0 + number, writer.history[-1])
    return replay


def drawn(replay, calls=1):
    """Numbers of the rows in the batches of some calls, [calls * steps, B], with probabilities."""
    batches = iter(replay.make_input_fn(LAYOUT, DEMAND)(None))
    samples = []
    for _ in range(calls):
        replay.feed()
        samples += [next(batches) for _ in range(DEMAND.steps_per_call)]
    replay.close()
    rewards = np.array([sample.transition.reward for sample in samples])
    return rewards, np.array([sample.probabilities for sample in samples]), samples


def test_the_tree_draws_what_cumulative_sums_draw():
    random = np.random.default_rng(0)
    for capacity in (1, 2, 5, 64, 100):
        tree = PriorityTree(capacity)
        weights = random.integers(0, 4, capacity).astype(float)
        weights[0] = 1.0
        tree.set(np.arange(capacity), weights)
        assert tree.total == weights.sum()
        masses = np.concatenate([random.random(200) * tree.total, np.arange(tree.total)])
        want = np.searchsorted(np.cumsum(weights), masses, side="right")
        np.testing.assert_array_equal(tree.find(masses), want)
    beyond = tree.find(np.array([np.nextafter(tree.total, np.inf)]))
    np.testing.assert_array_equal(beyond, weights.nonzero()[0][-1:])


def test_rows_are_drawn_in_proportion_to_their_priorities_and_the_oldest_leave():
    replay = make_replay(rows=70)
    rewards, probabilities, samples = drawn(replay, calls=200)
    assert rewards.min() >= 20 and rewards.max() == 69  # The newest 50 rows.
    weights = np.sqrt(1.0 + np.arange(20, 70))
    shares = np.bincount(rewards.astype(int).ravel(), minlength=70)[20:] / rewards.size
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.015)
    want = np.sqrt(1.0 + rewards) / weights.sum()
    np.testing.assert_allclose(probabilities, want)
    assert set(samples[0].table_size.numpy()) == {50}


def test_written_priorities_count_from_the_next_call_on():
    replay, lowest = make_replay(rows=50), np.nan
    _, _, samples = drawn(replay)
    keys = np.arange(50, dtype=np.uint64)
    replay.write([(keys, np.where(keys == 7, 1e6, lowest).astype(np.float32))])
    rewards, _, _ = drawn(replay, calls=4)
    assert (rewards == 7).mean() > 0.9  # The others keep a small chance.
    assert samples[0].keys.dtype == "uint64"


def test_a_call_is_due_as_the_ratio_says():
    replay = make_replay(rows=39)
    replay.make_input_fn(LAYOUT, DEMAND)
    due_after = []
    for number in range(39, 70):
        replay.insert(np.zeros(LAYOUT.width, np.float32), 1.0)
        while replay.is_call_due():
            replay.feed()
            due_after.append(number + 1)
    # A call takes 8 rows, each insert after the 40th allows 2.
    assert due_after == list(range(44, 71, 4))


@pytest.mark.parametrize("exponent", [0.0, 0.5])
def test_a_restored_table_draws_the_same_rows(tmp_path, exponent):
    config = ReplayConfig(
        min_size=40, max_size=50, samples_per_insert=2.0, priority_exponent=exponent
    )
    replay = make_replay(config, rows=60)
    drawn(replay, calls=3)
    replay.save(tmp_path)
    other = make_replay(config, seed=2)
    other.restore(tmp_path)
    for each in (replay, other):
        each.insert(np.full(LAYOUT.width, 60, np.float32), 3.0)
    want, got = drawn(replay, calls=5), drawn(other, calls=5)
    np.testing.assert_array_equal(want[0], got[0])
    np.testing.assert_array_equal(want[1], got[1])
    fresh = make_replay(config, rows=61, seed=2)
    assert (drawn(fresh, calls=5)[0] != want[0]).any()


def test_a_queue_comes_back_with_its_items(tmp_path):
    queue, again, saved = LocalQueue(), LocalQueue(), []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        if number < 2:
            queue.insert({"reward": np.full(3, number, np.float32)}, 1.0)
            queue.save(folder)
        else:
            again.restore(tmp_path / "1")
            again.save(folder)
        saved.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert saved[2] == saved[1] != saved[0]
