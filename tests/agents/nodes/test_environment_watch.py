"""The detection of an environment whose constructor, step or reset does not return."""

import re
import threading
import time

import dm_env
import numpy as np
import pytest

import launchpad as lp
from agents.nodes import environment_watch
from agents.nodes.environment_watch import EnvironmentWatch, WatchedEnvironment
from environments.fakes import TargetMatching

ACTION = np.zeros(1, np.float32)


class Plan:
    """What the watch needs of a `RunPlan`."""

    class task:  # noqa: N801 - an attribute of a plan
        name = "fakes:target"

    def __init__(self, env_timeout):
        self.env_timeout = env_timeout


class Stuck(TargetMatching):
    """Blocks in one of its calls until it is released."""

    def __init__(self, number):
        super().__init__(seed=1, length=5)
        self._left = number
        self.released = threading.Event()

    def reset(self):
        self._call()
        return super().reset()

    def step(self, action):
        self._call()
        return super().step(action)

    def _call(self):
        self._left -= 1
        if self._left == 0:
            assert self.released.wait(60)


@pytest.fixture
def kills(monkeypatch):
    found = []
    monkeypatch.setattr(lp, "make_node_killer", lambda: lambda *details: found.append(details))
    return found


def play(environment, num_calls):
    timestep = None
    for _ in range(num_calls):
        is_new = timestep is None or timestep.last()
        timestep = environment.reset() if is_new else environment.step(ACTION)
    assert isinstance(timestep, dm_env.TimeStep)


def test_a_constructor_that_does_not_return_kills_the_node(kills, monkeypatch):
    monkeypatch.setattr(environment_watch, "_SECONDS_TO_CONSTRUCT", 0.3)
    plan, made = Plan(0.1), Stuck(-1)

    def make(seed):
        _release_once_killed(kills, made)
        return made

    monkeypatch.setattr(Plan.task, "make", staticmethod(make), raising=False)
    assert environment_watch.make_environment("actor 3", plan, 1).released is made.released
    ((error, seconds),) = kills
    assert re.fullmatch(
        r"actor 3: fakes:target: its constructor has not returned for 0\.3 s \(.*:\d+\); let it .*",
        str(error),
    )
    assert seconds > 0.3
    monkeypatch.setattr(environment_watch, "_SECONDS_TO_CONSTRUCT", 60.0)
    environment_watch.make_environment("actor 3", plan, 1)  # `kills` is not empty: no wait.
    assert len(kills) == 1


@pytest.mark.parametrize(
    ("number", "expected"),
    [(4, "step 3 of the episode"), (9, "step 2 of the episode"), (1, "reset"), (7, "reset")],
)
def test_a_call_that_does_not_return_kills_the_node(kills, number, expected):
    """Episodes have five steps; other environments of the same actor do not matter."""
    environment, other = WatchedEnvironment(Stuck(number)), WatchedEnvironment(Stuck(-1))
    play(other, 3)
    with EnvironmentWatch("actor 3", Plan(0.3), [other, environment]):
        killer = threading.Thread(target=_release_once_killed, args=(kills, environment))
        killer.start()
        play(environment, number)
        killer.join()
    ((error, seconds),) = kills
    assert re.fullmatch(
        rf"actor 3: fakes:target: {expected} has not returned for 0\.3 s "
        r"\(\S+threading\.py:\d+\); let it raise an error instead of waiting without end, or "
        r"allow more time with --env-timeout",
        str(error),
    )
    assert seconds > 0.3


def _release_once_killed(kills, environment):
    deadline = time.monotonic() + 50
    while not kills and time.monotonic() < deadline:
        time.sleep(0.01)
    environment.released.set()


def test_many_calls_that_return_and_time_between_them_are_no_fault(kills):
    environment = WatchedEnvironment(Stuck(-1))
    with EnvironmentWatch("actor 0", Plan(1.0), [environment]):
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            play(environment, 20)
            time.sleep(0.01)
        time.sleep(1.5)
    assert kills == []


def test_outside_a_program_nobody_is_killed():
    environment = WatchedEnvironment(Stuck(2))
    with EnvironmentWatch("actor 0", Plan(0.1), [environment]):
        threading.Timer(0.5, environment.released.set).start()
        play(environment, 3)
