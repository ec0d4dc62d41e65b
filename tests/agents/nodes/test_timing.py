"""Where a node spends its time."""

import pytest

from agents.nodes import timing
from agents.nodes.counter import Counter
from agents.nodes.timing import TimedActor, Timing
from rl_replicator.runs.metrics import read_metrics


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless `clock.now` is changed."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(timing.time, "perf_counter", lambda: Clock.now)
    return Clock


def test_parts_are_timed_and_one_in_progress_counts_up_to_now(clock):
    times = Timing()
    step = times.part("step")
    assert times.take(wait=5.0) == {"step": 0.0, "wait": 5.0, "total": 0.0}
    with step:
        clock.now += 2
        assert times.take(wait=5.25) == {"step": 2.0, "wait": 0.25, "total": 2.0}
        clock.now += 1
    clock.now += 4
    with pytest.raises(ValueError, match="wrong"), step:
        clock.now += 8
        raise ValueError("wrong")
    assert times.take(wait=5.25) == {"step": 9.0, "wait": 0.0, "total": 13.0}


def test_an_actor_is_timed_and_passes_everything_on(clock):
    calls = []

    class Actor:
        def select_actions(self, observations):
            clock.now += 1
            return [2 * x for x in observations]

        def begin(self, *args):
            clock.now += 2
            calls.append(args)

        def observe(self, *args):
            clock.now += 4
            calls.append(args)

    times = Timing()
    actor = TimedActor(Actor(), times)
    assert actor.select_actions([1, 2]) == [2, 4]
    actor.begin(0, "first")
    actor.observe(1, "action", "next")
    assert calls == [(0, "first"), (1, "action", "next")]
    assert times.take() == {"policy": 1.0, "insert": 6.0, "total": 7.0}


def test_shares_are_over_all_nodes_of_a_kind(tmp_path):
    counter = Counter(tmp_path, total_steps=100, restored=None)
    counter.add_time("actor", {"policy": 1.0, "insert": -0.001, "total": 4.0})
    counter.add_time("actor", {"policy": 3.0, "insert": 0.0, "total": 4.0})
    counter.add_time("learner", {"step": 9.0, "total": 10.0})
    counter.record_evaluation(0, {"episode_return": 1.0, "learner_steps": 0.0}, None, {})
    shares = {name: column[-1] for name, column in read_metrics(tmp_path, "time").items()}
    del shares["environment_steps"], shares["wall_time"]
    assert shares == {"actor_policy": 0.5, "actor_insert": 0.0, "learner_step": 0.9}
