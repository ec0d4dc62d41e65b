"""Simulated runs of parts that are easy to add up, against the bound and hand calculations."""

import dataclasses

import numpy as np
import pytest

from agents.capacity.hardware import Hardware
from agents.capacity.model import predict
from agents.capacity.simulation import Simulated, simulate
from tests.agents.capacity.parts import PARTS
from tests.agents.capacity.test_model import ALONE, CLUSTER, RUN

AHEAD = 2000.0


def run(parts=PARTS, hardware=ALONE, seconds=6.0, **changes) -> Simulated:
    return simulate(parts, dataclasses.replace(RUN, **changes), hardware, AHEAD, seconds)


def test_a_run_without_any_waiting_is_as_fast_as_its_bound():
    """One actor takes an action a millisecond, and has a processor of its own."""
    simulated = run()
    assert simulated.actions == pytest.approx(1000, rel=0.01)
    assert simulated.learner_steps == pytest.approx(250, rel=0.01)
    assert simulated.actor["act"] == pytest.approx(1)
    # 250 steps of 2 ms a second.
    assert simulated.learner["step"] == pytest.approx(0.5, abs=0.01)
    assert simulated.learner["wait for samples"] == pytest.approx(0.5, abs=0.01)


def test_actors_wait_for_the_learner():
    """Three actors and a learner of one thread, on four processors."""
    simulated = run(actors=3)
    assert simulated.learner_steps == pytest.approx(500, rel=0.01)
    assert simulated.learner["step"] == pytest.approx(1, abs=0.01)
    # 2,000 of the 3,000 actions that they could take.
    assert simulated.actor["wait for the replay"] == pytest.approx(1 / 3, abs=0.01)


@pytest.mark.parametrize(("actors", "side"), [(16, "learner"), (1, "actors")])
def test_a_short_simulation_is_no_faster_than_the_bound(actors, side):
    """The faster side is not held back until the limiter's tolerance is used up."""
    parts = dataclasses.replace(PARTS, step_call=1e-3 if side == "learner" else 1e-5)
    hardware = Hardware(cores=64.0)
    deployment = dataclasses.replace(RUN, actors=actors)
    simulated = simulate(parts, deployment, hardware, 50_000.0, seconds=0.2)
    bound = predict(parts, deployment, hardware)
    assert simulated.actions <= 1.05 * bound.actions
    assert simulated.learner_steps <= 1.05 * bound.learner_steps


def test_actors_wait_for_what_they_have_sent():
    """An insert takes 3 ms. An actor with two in flight waits for 2 ms out of every 4 ms."""
    parts = dataclasses.replace(PARTS, insert_server=3e-3)
    hardware = Hardware(cores=64.0)
    assert run(parts, hardware).actions == pytest.approx(1000, rel=0.01)
    assert run(parts, hardware, max_in_flight_items=1).actions == pytest.approx(500, rel=0.01)


def test_threads_wait_for_the_lock():
    simulated = run(actors=8, in_threads=True)
    assert simulated.actions == pytest.approx(1000, rel=0.01)
    assert simulated.actor["wait for a processor"] == pytest.approx(7 / 8, abs=0.01)


def test_threads_share_the_lock_with_evaluations():
    """For 200 actions of 1 ms, the evaluator takes 20 of 0.8 ms, or 100 for a whole episode.

    It is one of nine threads, and needs less than a ninth of the time if episodes are cut off.
    """
    threads = {"actors": 8, "in_threads": True, "evaluation": 1 / 200}
    cut_off = run(max_episode_actions=20, **threads)
    assert cut_off.actions == pytest.approx(1000 / 1.08, rel=0.01)
    assert run(**threads).actions == pytest.approx(1000 * 8 / 9, rel=0.01)


def test_replicas_wait_for_the_slowest():
    """The steps of four replicas take random times, each on a processor of its own."""
    parts = dataclasses.replace(PARTS, step_variation=0.4)
    simulated = run(parts, Hardware(cores=32.0), replicas=4, actors=16)
    sigma = np.sqrt(np.log(1.16))
    draws = np.random.default_rng(0).lognormal(-(sigma**2) / 2, sigma, (100_000, 4))
    slowest = draws.max(axis=1).mean()
    assert simulated.learner["step"] == pytest.approx(1 / slowest, abs=0.01)
    assert simulated.learner["wait for the slowest replica"] == pytest.approx(
        1 - 1 / slowest, abs=0.01
    )
    # 1 ms and 25 transitions of 10 us each.
    assert simulated.learner_steps == pytest.approx(800 / slowest, rel=0.02)


def test_gradients_take_their_time():
    # 2 x 1/2 x 1 MB over 8 Gbit/s: a millisecond, after a step of 1.5 ms.
    hardware = Hardware(cores=32.0, device_speedup=1.0, link_gbps=8.0)
    simulated = run(hardware=hardware, replicas=2, actors=8)
    assert simulated.learner["average gradients"] == pytest.approx(0.4, abs=0.01)
    assert simulated.learner_steps == pytest.approx(400, rel=0.01)


@pytest.mark.parametrize("actors", [1, 4])
def test_the_age_of_the_weights(actors):
    """An actor fetches them every 250 actions, during which each actor allows 62.5 steps."""
    simulated = run(actors=actors, hardware=Hardware(cores=64.0), seconds=6.0)
    between = 62.5 * actors * simulated.learner_steps / simulated.actions * 4
    assert simulated.weight_age == pytest.approx(between / 2, rel=0.05)
    assert simulated.weight_age_95 == pytest.approx(0.95 * between, rel=0.05)


def test_the_age_of_weights_that_few_actors_fetch_in_the_simulated_time():
    """400 actors share 2,000 actions a second, so each fetches weights every 50 s."""
    simulated = run(actors=400, hardware=Hardware(machines=8, cores=64.0), seconds=0.5)
    # 124.5 actions of each of 400 actors, with one learner step per four actions.
    assert simulated.weight_age == pytest.approx(124.5 * 400 / 4, rel=0.05)
    assert simulated.weight_age_95 == pytest.approx(0.95 * 250 * 400 / 4, rel=0.05)


def test_weights_from_a_cache_are_older():
    """By 0.1 s on average, which is 25 steps."""
    fresh, cached = run(seconds=50.0), run(seconds=50.0, caches=1)
    assert cached.weight_age - fresh.weight_age == pytest.approx(25, abs=4)


def test_calls_publish_their_last_step():
    """Weights are 31.25 + 49.5 steps old if only every hundredth step publishes them."""
    assert run(steps_per_call=100, seconds=50.0).weight_age == pytest.approx(80.75, abs=4)


def test_the_age_of_weights_that_actors_queue_up_for_is_unknown():
    """The learner serves two fetches a second; actors that never waited would request eight."""
    parts = dataclasses.replace(PARTS, fetch_learner=0.5)
    hardware = Hardware(cores=64.0)
    assert np.isnan(run(parts, hardware, actors=25, seconds=0.9).weight_age)
    # Actors spend most of their time in the queue, and act for less than a second between fetches,
    # in which the learner makes 125 steps. Without the queue, the age would be 780.
    assert 0 < run(parts, hardware, actors=25, seconds=60.0).weight_age < 125


@pytest.mark.parametrize(
    ("changes", "parts", "expected"),
    [
        # A server of one thread takes 1 ms for an insert, and 25 x 40 us for its samples.
        ({"actors": 8}, {"insert_server": 1e-3, "sample_server": 40e-6}, 500),
        ({"actors": 8, "replay_shards": 2}, {"insert_server": 1e-3, "sample_server": 40e-6}, 1000),
        # A stream of samples unpacks 25 transitions of 100 us for each action; two share them.
        ({"actors": 8}, {"sample_thread": 1e-4, "sample_learner": 1e-4}, 400),
        ({"actors": 8, "replicas": 2}, {"sample_thread": 1e-4, "sample_learner": 1e-4}, 800),
    ],
)
def test_whatever_is_used_up_first_sets_the_pace(changes, parts, expected):
    hardware = Hardware(cores=64.0, server_cores=1.0)
    simulated = run(dataclasses.replace(PARTS, **parts), hardware, seconds=6.0, **changes)
    assert simulated.actions == pytest.approx(expected, rel=0.03)


def test_an_actor_writes_to_the_servers_in_turn():
    """Each of its four environments writes to a server of its own, which inserts 250 a second."""
    parts = dataclasses.replace(PARTS, insert_server=4e-3)
    hardware = Hardware(cores=64.0, server_cores=1.0)
    spread = {"envs_per_actor": 4, "replay_shards": 4}
    # Without that limit, the actor would take 1,290 actions a second.
    assert run(parts, hardware, **spread).actions == pytest.approx(1000, rel=0.03)


def test_actors_share_the_caches_whatever_the_number_of_servers():
    """Each of 16 actors acts for 0.25 s between fetches, and a cache takes 0.1 s to serve one.

    One cache serves ten fetches a second. With eight caches for two actors each, they hardly wait.
    """
    parts = dataclasses.replace(PARTS, fetch_learner=0.1)
    hardware = Hardware(cores=64.0)
    changes = {"actors": 16, "item_length": 10, "samples_per_insert": 1.0}
    one, eight = (run(parts, hardware, 30.0, caches=count, **changes) for count in (1, 8))
    assert one.actions == pytest.approx(2500, rel=0.03)
    # 250 actions in 0.35 s, or in 0.45 s if both actors always fetch at the same time.
    assert 16 * 250 / 0.45 < eight.actions < 1.03 * 16 * 250 / 0.35


def test_a_slow_network_sets_the_pace():
    # Each action moves 12,500 bytes out of the replay, over a network of 10 MB a second.
    hardware = dataclasses.replace(CLUSTER, network_gbps=0.08)
    parts = dataclasses.replace(PARTS, weight_bytes=0.0)
    simulated = run(parts, hardware, actors=8, seconds=6.0, replay_shards=2)
    # The learner's machine has one of the two shards. Transfers wait for both ends to be free.
    assert 1400 < simulated.actions <= 1600


# Everything that can take time takes some.
VARYING = dataclasses.replace(
    PARTS,
    environment_variation=0.5,
    step_variation=0.2,
    insert_server=1e-4,
    sample_server=1e-5,
    sample_learner=1e-5,
    sample_thread=5e-6,
    fetch_learner=5e-4,
    fetch_actor=5e-4,
    call=1e-4,
)
BUSY = [
    {"actors": 4, "envs_per_actor": 4, "replicas": 2, "evaluation": 1e-3},
    {"actors": 64, "replicas": 4, "learner_processes": 4, "replay_shards": 2, "caches": 2},
]
# More than the evaluator can play.
EVALUATED = [{"actors": 4, "evaluation": 1.0}, {"actors": 2, "in_threads": True, "evaluation": 1.0}]


@pytest.mark.parametrize("hardware", [ALONE, CLUSTER, Hardware(8, 4.0, device_speedup=20.0)])
@pytest.mark.parametrize("changes", [{}, {"actors": 12, "item_length": 8}, *BUSY, *EVALUATED])
def test_no_run_is_faster_than_its_bound_or_its_limiter(hardware, changes):
    deployment = dataclasses.replace(RUN, **changes)
    simulated = run(VARYING, hardware, seconds=2.0, **changes)
    bound = predict(VARYING, deployment, hardware)
    assert 0.4 * bound.actions < simulated.actions < 1.05 * bound.actions
    # Each step samples 100 transitions, each insert allows 25.
    samples, allowed = 100 * simulated.learner_steps, 25 * simulated.actions
    in_hand = AHEAD + 100 * 8 * 8  # Plus what the streams have sampled but no step has used.
    assert abs(samples - allowed) * simulated.seconds <= 2 * in_hand
    for shares in (simulated.actor, simulated.learner):
        assert sum(shares.values()) == pytest.approx(1)
        assert all(share > -1e-9 for share in shares.values())


@pytest.mark.parametrize("hardware", [ALONE, CLUSTER])
@pytest.mark.parametrize("changes", BUSY)
def test_equal_runs_are_equal(hardware, changes):
    first, second = (run(VARYING, hardware, seconds=0.3, **changes) for _ in range(2))
    assert first == second
