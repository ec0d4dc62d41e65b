"""Items of several transitions: what is written, drawn, counted and limited."""

import gc
import itertools
import threading

import dm_env
import numpy as np
import pytest
import reverb
from acme import specs

import rl_replicator as rr
from agents.config import one_by_one
from agents.d4pg.config import PAPER, D4PGConfig, PixelD4PGConfig
from agents.replay.adder import NStepTransitionAdder
from agents.replay.config import ReplayConfig
from agents.replay.frames import FrameLayout
from agents.replay.table import TABLE, LearnerDemand, error_buffer, make_input_fn, make_table
from agents.replay.transitions import TransitionLayout, transitions_per_item
from tests.agents.fixed_samples import make_spec
from tests.agents.replay import queue_table

SPEC = make_spec(1, 1)
FRAMES = SPEC._replace(observations=specs.Array((4, 4, 3), np.uint8))
LENGTH, BATCH = 4, 6
LAYOUT = TransitionLayout(SPEC, transitions_per_item=LENGTH)
DEMAND = LearnerDemand(global_batch_size=BATCH, steps_per_call=1, num_replicas=1)
CONFIG = ReplayConfig(min_size=2 * LENGTH, samples_per_insert=10_000.0, transitions_per_item=LENGTH)


@pytest.fixture
def start():
    servers = []

    def start(table):
        servers.append(reverb.Server([table]))
        return f"localhost:{servers[-1].port}"

    yield start
    for server in servers:
        server.stop()


def make_adder(address, layout, n_step=1, in_flight=0):
    return NStepTransitionAdder(
        reverb.Client(address),
        layout,
        n_step=n_step,
        discount=0.9,
        initial_priority=1.0,
        max_in_flight=in_flight,
        on_wait=lambda _: None,
    )


def write(address, count, first=0, in_flight=0, layout=LAYOUT):
    """Writes transitions whose observations are first, first + 1, ...; returns their adder."""
    adder = make_adder(address, layout, in_flight=in_flight)
    numbers = [np.array([number], np.float32) for number in range(first, first + count + 1)]
    adder.add_first(dm_env.restart(numbers[0]))
    for number in numbers[1:]:
        adder.add(np.zeros(1, np.float32), dm_env.transition(0.0, number))
    return adder


def held(address):
    return reverb.Client(address).server_info()[TABLE].current_size


def test_an_item_is_written_once_it_is_full(start):
    address = start(queue_table.make_table(LAYOUT))
    adder = write(address, 2 * LENGTH - 1)
    adder.flush()
    assert held(address) == 1
    adder.add(np.zeros(1, np.float32), dm_env.transition(0.0, np.array([8], np.float32)))
    adder.flush()
    assert held(address) == 2


def test_the_last_item_repeats_its_rows(start):
    address = start(queue_table.make_table(LAYOUT))
    assert write(address, LENGTH + 2).finish(60.0)
    samples = reverb.Client(address).sample(TABLE, num_samples=2, emit_timesteps=False)
    rows = np.concatenate([np.reshape(one.data, [LENGTH, -1]) for one in samples])
    np.testing.assert_array_equal(rows[:, 0], [0, 1, 2, 3, 4, 5, 4, 5])
    assert write(address, LENGTH).finish(60.0)  # A full item repeats none.
    assert held(address) == 1


def draws(addresses, count, layout=LAYOUT):
    """`count` batches of observations, [count, B] int, and the last `Sample`."""
    dataset = make_input_fn(addresses, layout, DEMAND)(None)
    samples = list(itertools.islice(dataset, count))
    observations = [sample.transition.observation[:, 0].numpy() for sample in samples]
    return np.stack(observations).astype(int), samples[-1]


def test_each_transition_of_an_item_serves_one_of_the_next_batches(start):
    address = start(
        reverb.Table(
            TABLE,
            reverb.selectors.Uniform(),
            reverb.selectors.Fifo(),
            max_size=100,
            rate_limiter=reverb.rate_limiters.MinSize(5),
            signature=LAYOUT.signature,
        )
    )
    assert write(address, 5 * LENGTH).finish(60.0)
    batches, sample = draws([address], 400 * LENGTH)
    rounds = batches.reshape(-1, LENGTH, BATCH)  # Batches of one draw; a column is an item.
    assert (rounds // LENGTH == rounds[:, :1] // LENGTH).all()
    places = rounds % LENGTH
    np.testing.assert_array_equal(np.sort(places, 1), np.arange(LENGTH)[:, None] + 0 * places)
    # All transitions are drawn equally often: 9,600 draws of 20.
    counts = np.bincount(batches.ravel(), minlength=5 * LENGTH)
    np.testing.assert_allclose(counts / counts.mean(), 1, atol=0.2)
    # Items and places within a batch are independent: two items are equal with probability 1/5, and
    # two places with probability 1/4.
    for values, choices in ((rounds // LENGTH, 5), (places, LENGTH)):
        pairs = values[:, 0, :-1] == values[:, 0, 1:]
        assert pairs.mean() == pytest.approx(1 / choices, abs=0.05)
    # Table size and probabilities are those of transitions, not of items.
    np.testing.assert_array_equal(sample.table_size, np.full(BATCH, 5 * LENGTH))
    np.testing.assert_allclose(sample.probabilities, np.full(BATCH, 1 / (5 * LENGTH)))
    assert sample.keys.shape == (BATCH,) and sample.transition.reward.shape == (BATCH,)


def test_batches_of_frames_have_the_stacks_of_their_steps(start):
    """All pixels of an episode's frame t are t, and so is the action at it."""
    layout = FrameLayout(FRAMES, 3, 2, 4, transitions_per_item=LENGTH)
    address = start(make_table(CONFIG, DEMAND, layout))
    adder = make_adder(address, layout, n_step=2)
    frames = [np.full((4, 4, 3), t, np.uint8) for t in range(12)]
    for length in (10, 3):
        adder.add_first(dm_env.restart(frames[0]))
        for t in range(length):
            end = dm_env.termination if t == length - 1 else dm_env.transition
            adder.add(np.array([t], np.float32), end(1.0, frames[t + 1]))
    assert adder.finish(60.0)
    assert held(address) == 4  # 4 + 4 + 2 (with the two before them) and 3 (one of them twice).
    samples = list(itertools.islice(make_input_fn([address], layout, DEMAND)(None), 200 * LENGTH))

    def joined(parts):
        return np.concatenate(list(parts))

    observations = joined(sample.transition.observation for sample in samples)
    assert observations.shape[1:] == (3, 4, 4, 3)
    steps = joined(sample.transition.action for sample in samples)  # [N, 1]
    pixels, ages = observations.reshape(len(steps), 3, -1), np.array([-2, -1, 0])
    np.testing.assert_array_equal(pixels.min(2), np.maximum(steps + ages, 0))
    np.testing.assert_array_equal(pixels.max(2), pixels.min(2))
    # Two steps later, or one for the last transition of an episode.
    later = joined(sample.transition.next_observation for sample in samples)[:, :, 0, 0, 0]
    rewards = joined(sample.transition.reward for sample in samples)
    discounts = joined(sample.transition.discount for sample in samples)
    passed = np.where(rewards > 1.5, 2, 1)
    np.testing.assert_array_equal(later, np.maximum(steps + passed[:, None] + ages, 0))
    ends = {(step, count) for step, count in zip(steps[:, 0], passed, strict=True) if count == 1}
    assert ends == {(9, 1), (2, 1)} and (discounts[passed == 1] == 0).all()
    # Steps 6 and 7 of the long episode are in two items, step 0 twice in that of the short one.
    weights = np.array([1 + 2, 2, 2, 1, 1, 1, 2, 2, 1, 1])
    counts = np.bincount(steps[:, 0].astype(int)) / len(steps)
    np.testing.assert_allclose(counts * weights.sum(), weights, rtol=0.25)


def test_shards_give_equal_parts(start):
    addresses = []
    for shard in range(2):
        addresses.append(start(make_table(CONFIG, DEMAND.of_shard(2), LAYOUT)))
        assert write(addresses[-1], 2 * LENGTH, first=100 * shard).finish(60.0)
    batches, sample = draws(addresses, 50 * LENGTH)
    assert (batches[:, :3] < 100).all() and (batches[:, 3:] >= 100).all()
    assert len(np.unique(batches)) == 4 * LENGTH
    np.testing.assert_array_equal(sample.table_size, np.full(BATCH, 4 * LENGTH))
    np.testing.assert_allclose(sample.probabilities, np.full(BATCH, 1 / (4 * LENGTH)))


def test_limits_are_transitions():
    config = ReplayConfig(
        max_size=1001, min_size=201, samples_per_insert=16.0, transitions_per_item=LENGTH
    )
    info = make_table(config, DEMAND, LAYOUT).info
    assert info.max_size == 251 and info.rate_limiter_info.min_size_to_sample == 51
    assert info.rate_limiter_info.samples_per_insert == 16.0
    # In flight: one draw in the sampler, one being handed out, and three batches on their way to
    # the step.
    assert DEMAND.transitions_in_flight(LENGTH) == (2 * LENGTH + 3) * BATCH
    large = LearnerDemand(256, 16, 1)
    assert error_buffer(config, DEMAND, LENGTH) == pytest.approx(0.1 * 201 * 16)
    config = ReplayConfig(min_size=1000, samples_per_insert=64.0)
    buffer = error_buffer(config, large, 8)
    assert buffer == 2 * (16 * 256 + 19 * 256)
    limiter = make_table(config, large, TransitionLayout(SPEC, transitions_per_item=8)).info
    limiter = limiter.rate_limiter_info
    center = 1000 / 8 * 64
    assert limiter.max_diff - center == pytest.approx(buffer / 8)
    assert center - limiter.min_diff == pytest.approx(buffer / 8)
    # Two inserts are two items.
    small = ReplayConfig(min_size=50, samples_per_insert=1000.0)
    assert error_buffer(small, LearnerDemand(1, 1, 1), 8) == 2 * 1000 * 8


def test_which_tables_have_items_of_several_transitions():
    assert ReplayConfig().item_length == 8
    assert ReplayConfig(priority_exponent=0.6).item_length == 1
    assert one_by_one(D4PGConfig()).replay.item_length == 1
    assert one_by_one(object()).__class__ is object
    assert PAPER.replay.item_length == 1 and PixelD4PGConfig().replay.item_length == 8
    assert transitions_per_item(LAYOUT.signature) == LENGTH
    assert transitions_per_item(TransitionLayout(SPEC).signature) == 1
    for length in (1, 3):
        layout = FrameLayout(FRAMES, 3, 2, 4, transitions_per_item=length)
        assert transitions_per_item(layout.signature) == length


@pytest.mark.parametrize("is_stopped", [False, True])
def test_an_input_that_is_freed_lets_its_table_go(is_stopped):
    """A sampler of a stopped server would retry a thousand times a second."""
    servers = []

    def use():
        server = reverb.Server([queue_table.make_table(LAYOUT)])
        servers.append(server)
        address = f"localhost:{server.port}"
        write(address, BATCH * LENGTH).flush()
        replicator = rr.SingleDeviceReplicator()
        inputs = replicator.make_inputs(make_input_fn([address], LAYOUT, DEMAND))
        step = replicator.replicate(lambda sample: sample.keys, inputs)
        for _ in range(LENGTH - 1):
            step()  # One batch is left: the pump waits for more.
        return inputs

    before = set(threading.enumerate())
    inputs = use()
    (pump,) = [t for t in set(threading.enumerate()) - before if t.name == "input-pump"]
    if is_stopped:
        servers.pop().stop()
    del inputs
    gc.collect()
    pump.join(60)
    assert not pump.is_alive()
