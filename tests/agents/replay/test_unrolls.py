"""Unrolls as they are read from a queue, against a plain walk through the episodes."""

import dm_env
import numpy as np
import pytest
import reverb
import tensorflow as tf
import tree
from acme import specs

import rl_replicator as rr
from agents.replay.local import LocalQueue
from agents.replay.table import LearnerDemand, make_queue, make_queue_input_fn
from agents.replay.transitions import TABLE
from agents.replay.unrolls import Unroll, UnrollAdder, UnrollLayout
from tests.agents.fixed_samples import make_spec
from tests.agents.replay.episodes import (
    EXTRAS,
    FRAME,
    GAMMA,
    VECTOR,
    alone,
    check_equal,
    extras_of,
    make_episodes,
    observed,
    play,
    with_vector,
)

LENGTH = 4
LENGTHS = (6, 3, 1, 2, 2, 9, 1, 5, 7, 1, 4, 4)  # Some are shorter than an unroll.
KINDS = {  # Observations, what is seen of them, the frames in a stack, numbered actions.
    "state": (VECTOR, alone, None, None),
    "numbers": (VECTOR, alone, None, 3),
    "frames": (FRAME, alone, 3, 3),
    "frames and vectors": (FRAME, with_vector, 3, None),
}


def make_layout(observations, see, stack, num_actions, length=LENGTH):
    actions = specs.DiscreteArray(num_actions, np.int32) if num_actions else 2
    return UnrollLayout(make_spec(see(observations), actions), length, stack, EXTRAS)


def play_all(adder, observations, see, stack, num_actions):
    """Plays episodes; returns the rows that they have, in the order of `Unroll`."""
    episodes, rows = make_episodes(observations, LENGTHS, num_actions), []
    play(adder, episodes, see)
    for observed_, actions, rewards, discounts, _ in episodes:
        total, factor = 0.0, 0.0
        for t, action in enumerate(actions):
            total = rewards[t] + factor * total
            factor = GAMMA * discounts[t]
            numbers = (rewards[t], factor, 1.0, float(t == 0), total)
            seen = observed(observed_, t, stack, see)
            rows.append(Unroll(seen, action, *numbers, extras_of(t)))
        if discounts[-1]:  # Its last observation has a value.
            action, extras = tree.map_structure(np.zeros_like, (action, extras_of(0)))
            seen = observed(observed_, len(actions), stack, see)
            rows.append(Unroll(seen, action, 0.0, 0.0, 0.0, 0.0, total, extras))
    return rows


def check_unroll(got, rows, number):
    """Asserts that a batch of one has the unroll of a number."""
    expected = rows[number * LENGTH : (number + 1) * LENGTH + 1]
    assert len(expected) == LENGTH + 1
    expected = tree.map_structure(lambda *each: np.stack(each), *expected)
    check_equal(tree.map_structure(lambda x: x[0].numpy(), got), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_unrolls_are_consecutive_rows_that_overlap_by_one(kind):
    layout, demand = make_layout(*KINDS[kind]), LearnerDemand(1, 1, 1)
    server = reverb.Server([make_queue(100, demand, layout)])
    address = f"localhost:{server.port}"
    adder = UnrollAdder(reverb.Client(address), layout, GAMMA, lambda seconds: None)
    rows = play_all(adder, *KINDS[kind])
    assert adder.finish(60.0)
    count = (len(rows) - 1) // LENGTH
    assert reverb.Client(address).server_info()[TABLE].current_size == count
    batches = iter(make_queue_input_fn([address], layout, demand)(None))
    for number in range(count):
        sample = next(batches)
        assert sample.keys == ()
        check_unroll(sample.transition, rows, number)
    adder.close()
    server.stop()


def test_a_queue_in_the_same_process_goes_on_where_it_was_saved(tmp_path):
    """With the steps that have not made an unroll yet, whatever was added again meanwhile."""
    kind = KINDS["state"]
    layout, demand, queue = make_layout(*kind), LearnerDemand(2, 1, 2), LocalQueue()
    rows = play_all(UnrollAdder(queue, layout, GAMMA, lambda seconds: None), *kind)
    restored = LocalQueue()
    adder = UnrollAdder(restored, layout, GAMMA, lambda seconds: None)
    queue.save(tmp_path)
    restored.restore(tmp_path)
    inputs = [iter(restored.make_input_fn(layout, demand)(None)) for _ in range(2)]
    for number in range(0, (len(rows) - 1) // LENGTH - 1, 2):
        assert restored.is_call_due()
        restored.feed()
        for replica, batches in enumerate(inputs):
            check_unroll(next(batches).transition, rows, number + replica)
    play_all(adder, *kind)
    steps = adder.pending()
    adder.set_pending([])
    adder.set_pending(steps)
    assert len(steps) == 1 + (len(rows) - 1) % LENGTH
    restored.close()


def test_actors_wait_while_the_queue_is_full():
    """Of unrolls of one step, two fit into the queue, and one is on its way there."""
    layout = make_layout(*KINDS["state"], length=1)
    server = reverb.Server([make_queue(2, LearnerDemand(1, 1, 1), layout)])
    client = reverb.Client(f"localhost:{server.port}")
    waits, counts = [], []

    def on_wait(seconds):
        assert seconds < 60
        if step < 4:
            return False  # A busy server may be slow to confirm what it takes.
        waits.append(seconds)
        return True

    adder = UnrollAdder(client, layout, GAMMA, on_wait)
    adder.add_first(dm_env.restart(np.zeros(3, np.float32)))
    for step in range(6):
        next_step = dm_env.transition(1.0, np.full(3, step, np.float32))
        adder.add(np.zeros(2, np.float32), next_step, extras_of(step))
        counts.append(len(waits))
    assert counts == [0, 0, 0, 0, 1, 2]
    assert adder.seconds_waited > 0.8
    assert client.server_info()[TABLE].current_size == 2
    adder.close()
    server.stop()


def test_replicas_and_servers_share_each_batch():
    layout, demand = make_layout(*KINDS["numbers"]), LearnerDemand(8, 1, 2)
    servers = [reverb.Server([make_queue(100, demand, layout, 2)]) for _ in range(2)]
    addresses = [f"localhost:{server.port}" for server in servers]
    adders = [
        UnrollAdder(reverb.Client(address), layout, GAMMA, lambda seconds: None)
        for address in addresses
    ]
    for adder in adders:
        rows = play_all(adder, *KINDS["numbers"])
        assert adder.finish(60.0)
    replicator = rr.make("multi_device:2")
    inputs = replicator.make_inputs(
        make_queue_input_fn(addresses, layout, demand), per_replica=True
    )
    step = replicator.replicate(lambda sample: sample.transition.reward, inputs)
    rewards = np.stack(replicator.local_results(step()))
    assert rewards.shape == (2, 4, LENGTH + 1)
    inputs.close()
    known = {np.float32(row.reward) for row in rows}
    assert set(np.ravel(rewards)) <= known
    for adder, server in zip(adders, servers, strict=True):
        adder.close()
        server.stop()


def test_shapes_are_static():
    """The learner builds its networks from them."""
    layout = make_layout(*KINDS["frames"])
    found = tf.function(layout.unpack, autograph=False).get_concrete_function(
        tree.map_structure(
            lambda spec: tf.TensorSpec([5, *spec.shape], spec.dtype), layout.signature
        )
    )
    assert found.structured_outputs.observation.shape == [5, LENGTH + 1, 3, *FRAME.shape]
    assert found.structured_outputs.action.shape == [5, LENGTH + 1]
