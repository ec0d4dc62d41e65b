"""Where a node spends its time."""

import pytest

from agents.nodes import stopwatch
from agents.nodes.stopwatch import Stopwatch, TimeSplit


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless `clock.now` is changed."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: Clock.now)
    return Clock


def test_methods_are_timed(clock):
    class Environment:
        def step(self, action, repeat=1):
            clock.now += repeat
            self.frame()
            return action

        def frame(self):
            clock.now += 0.5

    environment, watch = Environment(), Stopwatch()
    parts = {"step": "environment", "reset": "environment", "frame": "render"}
    watch.attach(environment, parts)
    environment.step(1)  # Before the start.
    watch.start(wait=5.0)
    assert environment.step(3, repeat=2) == 3
    clock.now += 4
    assert watch.take(wait=5.25) == {"environment": 2.5, "render": 0.5, "wait": 0.25, "total": 6.5}
    environment.step(1)
    assert watch.take(wait=5.5) == {"environment": 1.5, "render": 0.5, "wait": 0.25, "total": 1.5}
    watch.stop()
    environment.step(1)
    watch.start()
    clock.now += 1
    assert watch.take() == {"environment": 0.0, "render": 0.0, "total": 1.0}


def test_an_error_passes_and_its_time_counts(clock):
    class Environment:
        def step(self):
            clock.now += 1
            raise ValueError("wrong")

    environment, watch = Environment(), Stopwatch()
    watch.attach(environment, {"step": "environment"})
    watch.start()
    with pytest.raises(ValueError, match="wrong"):
        environment.step()
    assert watch.take() == {"environment": 1.0, "total": 1.0}


def test_a_call_in_progress_counts_up_to_now(clock):
    taken = []

    class Learner:
        def step(self):
            clock.now += 1
            taken.append(watch.take())
            clock.now += 2
            taken.append(watch.take())
            clock.now += 4

    learner, watch = Learner(), Stopwatch()
    watch.attach(learner, {"step": "step"})
    watch.start()
    learner.step()
    clock.now += 8
    taken.append(watch.take())
    assert taken == [
        {"step": 1.0, "total": 1.0},
        {"step": 2.0, "total": 2.0},
        {"step": 4.0, "total": 12.0},
    ]


def test_shares_are_over_all_nodes_of_a_kind():
    split = TimeSplit()
    split.add("actor", {"policy": 1.0, "insert": -0.001, "total": 4.0})
    split.add("actor", {"policy": 3.0, "insert": 0.0, "total": 4.0})
    split.add("learner", {"step": 9.0, "total": 10.0})
    assert split.shares() == {"actor_policy": 0.5, "actor_insert": 0.0, "learner_step": 0.9}
