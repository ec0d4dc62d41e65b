"""Items of several transitions, as a learner draws them from two servers."""

import gc
import itertools
import threading

import dm_env
import numpy as np
import pytest
import reverb

import rl_replicator as rr
from agents.replay.table import TABLE, LearnerDemand, make_input_fn
from agents.replay.transitions import TransitionLayout
from tests.agents.fixed_samples import make_spec
from tests.agents.replay.queue_table import make_adder, make_table

LENGTH, BATCH, ITEMS = 4, 6, 5
LAYOUT = TransitionLayout(make_spec(1, 1), transitions_per_item=LENGTH)
DEMAND = LearnerDemand(global_batch_size=BATCH, steps_per_call=1, num_replicas=1)


def write(server, count, first=0):
    """Writes transitions whose observations are first, first + 1, ..."""
    adder = make_adder(server, LAYOUT)
    numbers = [np.array([number], np.float32) for number in range(first, first + count + 1)]
    adder.add_first(dm_env.restart(numbers[0]))
    for number in numbers[1:]:
        adder.add(np.zeros(1, np.float32), dm_env.transition(0.0, number))
    assert adder.finish(60.0)


def test_each_transition_of_an_item_serves_one_of_the_next_batches():
    servers = []
    for shard in range(2):
        table = reverb.Table(
            TABLE,
            reverb.selectors.Uniform(),
            reverb.selectors.Fifo(),
            max_size=100,
            rate_limiter=reverb.rate_limiters.MinSize(ITEMS),
            signature=LAYOUT.signature,
        )
        servers.append(reverb.Server([table]))
        write(servers[-1], ITEMS * LENGTH, first=shard * ITEMS * LENGTH)
    addresses = [f"localhost:{server.port}" for server in servers]
    dataset = make_input_fn(addresses, LAYOUT, DEMAND)(None)
    samples = list(itertools.islice(dataset, 400 * LENGTH))
    observations = [sample.transition.observation[:, 0].numpy() for sample in samples]
    # Batches of one draw; a column is an item.
    rounds = np.stack(observations).astype(int).reshape(-1, LENGTH, BATCH)
    items, places = np.divmod(rounds, LENGTH)
    assert (items == items[:, :1]).all()
    # Each server gives half of a batch.
    np.testing.assert_array_equal(items // ITEMS, [0, 0, 0, 1, 1, 1] + 0 * items)
    np.testing.assert_array_equal(np.sort(places, 1), np.arange(LENGTH)[:, None] + 0 * places)
    # All transitions are drawn equally often: 9,600 draws of 40; an item, 240 times.
    counts = np.bincount(rounds.ravel(), minlength=2 * ITEMS * LENGTH)
    np.testing.assert_allclose(counts / counts.mean(), 1, atol=0.35)  # 6 deviations.
    # Items and places within a batch are independent: two items of a server are equal with
    # probability 1/5, and two places with probability 1/4.
    for values, choices in ((items, ITEMS), (places, LENGTH)):
        halves = values[:, 0].reshape(-1, 2, BATCH // 2)
        pairs = halves[..., :-1] == halves[..., 1:]
        assert pairs.mean() == pytest.approx(1 / choices, abs=0.06)
    # Table size and probabilities are those of transitions, not of items, in both tables.
    sample, total = samples[-1], 2 * ITEMS * LENGTH
    np.testing.assert_array_equal(sample.table_size, np.full(BATCH, total))
    np.testing.assert_allclose(sample.probabilities, np.full(BATCH, 1 / total))
    assert sample.keys.shape == (BATCH,) and sample.transition.reward.shape == (BATCH,)
    for server in servers:
        server.stop()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_an_input_that_is_freed_lets_its_table_go(is_stopped):
    """A sampler of a stopped server would retry a thousand times a second."""
    servers = []

    def use():
        server = reverb.Server([make_table(LAYOUT)])
        servers.append(server)
        address = f"localhost:{server.port}"
        write(server, BATCH * LENGTH)
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
