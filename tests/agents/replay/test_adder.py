"""n-step returns by hand, and how rows reach a table; test_adder_reference.py compares these."""

import time

import dm_env
import numpy as np
import pytest
import reverb

from agents.replay.adder import ReturnAdder, n_step_return
from agents.replay.table import TABLE
from agents.replay.transitions import TransitionLayout
from tests.agents.fixed_samples import make_spec
from tests.agents.replay.queue_table import make_adder, make_table


def test_n_step_return_by_hand():
    # 1 + 0.5 * 2 + 0.25 * 4 = 3; nothing terminates: 0.5 ** 3.
    assert n_step_return([1.0, 2.0, 4.0], [1.0, 1.0, 1.0], 0.5) == (3.0, 0.125)
    # The environment's own discounts count too: 1 + 0.5*0.8*2 + 0.25*0.8*0.5*4 = 2.2.
    total, discount = n_step_return([1.0, 2.0, 4.0], [0.8, 0.5, 1.0], 0.5)
    np.testing.assert_allclose([total, discount], [2.2, 0.125 * 0.4])
    # Termination at the last step: nothing to bootstrap from.
    assert n_step_return([1.0, 2.0], [1.0, 0.0], 0.9) == (2.8, 0.0)


@pytest.fixture
def layout():
    return TransitionLayout(make_spec(2, 1))


@pytest.fixture
def server(layout):
    server = reverb.Server([make_table(layout)])
    yield server
    server.stop()


def observation(t):
    return np.array([t, 10 + t], np.float32)


def play(adder, rewards, last_discount):
    """Adds an episode whose observations and actions encode their step."""
    adder.add_first(dm_env.restart(observation(0)))
    for t, reward in enumerate(rewards):
        last = t == len(rewards) - 1
        step_type = dm_env.StepType.LAST if last else dm_env.StepType.MID
        discount = last_discount if last else 1.0
        adder.add(
            np.array([t / 10], np.float32),
            dm_env.TimeStep(step_type, reward, discount, observation(t + 1)),
        )


def rows(server, layout, count):
    """Reads `count` rows back, oldest first."""
    samples = list(server.localhost_client().sample(TABLE, num_samples=count, emit_timesteps=False))
    priorities = [np.ravel(sample.info.priority)[0] for sample in samples]
    return priorities, layout.unpack(np.stack([np.ravel(sample.data) for sample in samples]))


def inserted(client):
    return client.server_info()[TABLE].rate_limiter_info.insert_stats.completed


def wait_for_inserts(client, count):
    """Waits until the table has taken `count` rows, and checks that it took no more."""
    deadline = time.monotonic() + 60
    while inserted(client) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert inserted(client) == count


def test_the_discounted_rewards_up_to_the_end_of_each_return_are_stored():
    """Otherwise the first return of a sparse reward would be divided by a scale of 0."""
    layout = TransitionLayout(make_spec(2, 1), ReturnAdder.SPEC)
    server = reverb.Server([make_table(layout)])
    settings = {"n_step": 2, "discount": 0.5, "initial_priority": 1.0, "max_in_flight": 0}
    adder = ReturnAdder(server.localhost_client(), layout, **settings, on_wait=print)
    for rewards in ([1.0, 2.0, 4.0], [8.0]):
        play(adder, rewards, last_discount=0.0)
    adder.flush()
    _, transition = rows(server, layout, 4)
    np.testing.assert_array_equal(transition.extras, [2 + 0.5, 4 + 1 + 0.25, 4 + 1 + 0.25, 8])
    np.testing.assert_array_equal(transition.reward, [2, 4, 4, 8])
    server.stop()


def test_steps_outside_of_an_episode_are_refused_and_one_begun_anew_drops_the_old(server, layout):
    adder = make_adder(server, layout, n_step=3, initial_priority=2.5)
    action, step = np.zeros(1, np.float32), dm_env.transition(1.0, observation(1))
    with pytest.raises(ValueError, match="expected add_first before add"):
        adder.add(action, step)
    with pytest.raises(ValueError, match="expected the first step of an episode"):
        adder.add_first(step)
    adder.add_first(dm_env.restart(observation(0)))
    adder.add(action, step)
    play(adder, rewards=[5.0], last_discount=0.0)  # No reset in between.
    adder.flush()
    assert rows(server, layout, 1)[1].reward.tolist() == [5.0]
    assert server.localhost_client().server_info()[TABLE].current_size == 0
    with pytest.raises(ValueError, match="expected add_first before add"):
        adder.add(action, step)  # The episode has ended.


def test_rows_travel_together_and_the_last_ones_at_the_end(server, layout):
    """Rows are sent in chunks of 8: a message costs several times as much as the row in it."""
    adder = make_adder(server, layout, n_step=3, max_in_flight=32)
    play(adder, rewards=[1.0] * 20, last_discount=0.0)
    client = server.localhost_client()
    wait_for_inserts(client, 16)
    assert client.server_info()[TABLE].current_size == 16
    adder.finish(60.0)
    assert client.server_info()[TABLE].current_size == 20
    adder.close()


@pytest.fixture
def full(layout):
    """A server whose table takes no more than eight items before some are sampled."""
    table = make_table(layout, reverb.rate_limiters.Queue(8), max_times_sampled=0)
    server = reverb.Server([table])
    yield server
    server.stop()


def test_the_last_rows_are_confirmed_however_late(full, layout):
    """The learner samples after half a second of waiting."""
    client = full.localhost_client()

    def on_wait(seconds):
        if inserted(client) == 8:
            list(client.sample(TABLE, num_samples=12, emit_timesteps=False))

    adder = make_adder(full, layout, 3, max_in_flight=32, on_wait=on_wait)
    play(adder, rewards=[1.0] * 20, last_discount=0.0)
    assert not adder.finish(0.1)
    wait_for_inserts(client, 8)
    assert adder.finish(60.0)
    assert inserted(client) == 20
    adder.close()


def test_a_full_limiter_is_waited_for_aloud(full, layout):
    waits = []

    class GiveUp(Exception):
        pass

    def on_wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            raise GiveUp

    adder = make_adder(full, layout, 3, on_wait=on_wait)
    with pytest.raises(GiveUp):
        for _ in range(10):
            play(adder, rewards=[1.0] * 8, last_discount=0.0)
    assert waits[0] >= 0.4 and waits[1] > waits[0]
    assert not adder.finish(0.1)


def test_a_long_episode_is_held_back_before_its_end(full, layout):
    """Every 16 rows; otherwise, the rows of an actor that is held back would fill the memory."""
    client, held_back = full.localhost_client(), []

    def on_wait(seconds):
        assert 0.4 < seconds < 60
        held_back.append(step)
        # No more than the limiter allows: this step may have sampled already.
        limiter = client.server_info()[TABLE].rate_limiter_info
        allowed = limiter.insert_stats.completed - limiter.sample_stats.completed
        if allowed:  # A slow server may have confirmed nothing yet.
            list(client.sample(TABLE, allowed, emit_timesteps=False))

    adder = make_adder(full, layout, 3, max_in_flight=2, on_wait=on_wait)
    assert adder.seconds_waited == 0.0
    adder.add_first(dm_env.restart(observation(0)))
    for step in range(1, 40):
        adder.add(np.zeros(1, np.float32), dm_env.transition(1.0, observation(step)))
    assert set(held_back) == {18, 34}  # Step t completes row t - 2.
    assert 0.4 * len(held_back) < adder.seconds_waited < 120
    adder.close()
