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
from environments.flat import frame_of
from tests.agents.replay.queue_table import with_vector

GAMMA, LENGTH = 0.9, 4
EXTRAS = {"log_prob": specs.Array((), np.float32), "u": specs.Array((2,), np.float32)}
DISCRETE = specs.DiscreteArray(3, np.int32)
CONTINUOUS = specs.BoundedArray((2,), np.float32, -1, 1)
# How each episode ends, and its actions: some are shorter than an unroll.
EPISODES = [
    *[("terminated", 6), ("truncated", 3), ("terminated", 1), ("truncated", 1), ("cut", 2)],
    *[("terminated", 2), ("truncated", 9), ("cut", 5), ("terminated", 7), ("truncated", 4)],
]
FRAME = specs.BoundedArray((2, 2, 1), np.uint8, 0, 255)
KINDS = {
    "state": (specs.Array((3,), np.float32), None, CONTINUOUS),
    "numbers": (specs.Array((3,), np.float32), None, DISCRETE),
    "frames": (FRAME, 3, DISCRETE),
    "frames and vectors": (with_vector(FRAME), 3, CONTINUOUS),
}


def make_layout(observations, stack, actions, length=LENGTH):
    spec = specs.EnvironmentSpec(observations, actions, specs.Array((), np.float32), None)
    return UnrollLayout(spec, length, stack, EXTRAS)


def draw(random, spec):
    if isinstance(spec, dict):
        return with_vector(draw(random, spec["pixels"]))
    if isinstance(spec, specs.DiscreteArray):
        return np.int32(random.integers(spec.num_values))
    if spec.dtype == np.uint8:
        return random.integers(0, 256, spec.shape, dtype=np.uint8)
    return random.normal(size=spec.shape).astype(np.float32)


def play(adder, observations, stack, actions):
    """Plays `EPISODES`; returns the rows that they have, in the order of `Unroll`."""
    random, rows = np.random.default_rng(0), []
    for end, length in EPISODES:
        seen, total, factor = [draw(random, observations)], np.float64(0), 0.0
        adder.add_first(dm_env.restart(seen[0]))

        def observation(seen=seen):
            first = [seen[0]] * ((stack or 1) - 1)
            if not stack:
                return seen[-1]
            stacked = np.stack([frame_of(each) for each in [*first, *seen][-stack:]])
            is_nest = isinstance(seen[-1], dict)
            return {**seen[-1], "pixels": stacked} if is_nest else stacked

        for step in range(length):
            is_last = step == length - 1 and end != "cut"
            action, reward = draw(random, actions), float(np.float32(random.normal()))
            discount = {(True, "terminated"): 0.0}.get((is_last, end), 0.5 if step == 1 else 1.0)
            extras = tree.map_structure(lambda spec: draw(random, spec), EXTRAS)
            extras["log_prob"] = np.float32(extras["log_prob"])
            total = reward + factor * total
            factor = GAMMA * discount
            numbers = (reward, factor, 1.0, float(step == 0), total)
            rows.append([observation(), action, *numbers, extras])
            seen.append(draw(random, observations))
            kind = dm_env.StepType.LAST if is_last else dm_env.StepType.MID
            adder.add(action, dm_env.TimeStep(kind, reward, discount, seen[-1]), extras)
        if end != "terminated":
            nothing = tree.map_structure(np.zeros_like, (action, extras))
            numbers = (0.0, 0.0, 0.0, float(length == 0), total)
            rows.append([observation(), nothing[0], *numbers, nothing[1]])
    return [Unroll(*row) for row in rows]


def check_equal(got, rows, number):
    """Asserts that a batch of one has the unroll of a number."""
    expected = rows[number * LENGTH : (number + 1) * LENGTH + 1]
    assert len(expected) == LENGTH + 1
    expected = tree.map_structure(lambda *each: np.stack(each), *expected)
    for name, a, b in zip(Unroll.__annotations__, got, expected, strict=True):
        tree.map_structure(
            lambda x, y, name=name: np.testing.assert_allclose(x[0], y, rtol=1e-6, err_msg=name),
            a,
            b,
        )


@pytest.mark.parametrize("kind", KINDS)
def test_unrolls_are_consecutive_rows_that_overlap_by_one(kind):
    layout, demand = make_layout(*KINDS[kind]), LearnerDemand(1, 1, 1)
    server = reverb.Server([make_queue(100, demand, layout)])
    address = f"localhost:{server.port}"
    adder = UnrollAdder(reverb.Client(address), layout, GAMMA, lambda seconds: None)
    rows = play(adder, *KINDS[kind])
    assert adder.finish(60.0)
    count = (len(rows) - 1) // LENGTH
    assert reverb.Client(address).server_info()[TABLE].current_size == count
    batches = iter(make_queue_input_fn([address], layout, demand)(None))
    for number in range(count):
        sample = next(batches)
        assert sample.keys == ()
        check_equal(sample.transition, rows, number)
    adder.close()
    server.stop()


def test_a_queue_in_the_same_process_goes_on_where_it_was_saved(tmp_path):
    """With the steps that have not made an unroll yet, whatever was added again meanwhile."""
    kind = KINDS["state"]
    layout, demand, queue = make_layout(*kind), LearnerDemand(2, 1, 2), LocalQueue()
    rows = play(UnrollAdder(queue, layout, GAMMA, lambda seconds: None), *kind)
    restored = LocalQueue()
    adder = UnrollAdder(restored, layout, GAMMA, lambda seconds: None)
    queue.save(tmp_path)
    restored.restore(tmp_path)
    inputs = [iter(restored.make_input_fn(layout, demand)(None)) for _ in range(2)]
    for number in range(0, (len(rows) - 1) // LENGTH - 1, 2):
        assert restored.is_call_due()
        restored.feed()
        for replica, batches in enumerate(inputs):
            check_equal(next(batches).transition, rows, number + replica)
    play(adder, *kind)
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
    extras = tree.map_structure(lambda spec: np.zeros(spec.shape, np.float32), EXTRAS)
    for step in range(6):
        next_step = dm_env.transition(1.0, np.full(3, step, np.float32))
        adder.add(np.zeros(2, np.float32), next_step, extras)
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
        rows = play(adder, *KINDS["numbers"])
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


def test_wrong_steps_are_refused_by_name():
    layout = make_layout(*KINDS["state"])
    adder = UnrollAdder(LocalQueue(), layout, GAMMA, lambda seconds: None)
    first = dm_env.restart(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="expected add_first before add"):
        adder.add(np.zeros(2, np.float32), first)
    with pytest.raises(ValueError, match="observation of shape"):
        adder.add_first(dm_env.restart(np.zeros(2, np.float32)))
    adder.add_first(first)
    middle = dm_env.transition(0.0, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="action of shape"):
        adder.add(np.zeros(3, np.float32), middle)
    with pytest.raises(ValueError, match="observation of shape"):
        adder.add(np.zeros(2, np.float32), dm_env.transition(0.0, np.zeros(2, np.float32)))
    with pytest.raises(ValueError, match="expects extras like"):
        adder.add(np.zeros(2, np.float32), middle)


def test_shapes_are_static():
    """The learner builds its networks from them."""
    layout = make_layout(*KINDS["frames"])
    found = tf.function(layout.unpack).get_concrete_function(
        tree.map_structure(
            lambda spec: tf.TensorSpec([5, *spec.shape], spec.dtype), layout.signature
        )
    )
    assert found.structured_outputs.observation.shape == [5, LENGTH + 1, 3, 2, 2, 1]
    assert found.structured_outputs.action.shape == [5, LENGTH + 1]
