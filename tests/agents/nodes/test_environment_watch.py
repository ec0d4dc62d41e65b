"""The detection of an environment whose constructor, step or reset does not return."""

import itertools
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import launchpad as lp
from agents.nodes import environment_watch
from agents.nodes.environment_watch import EnvironmentWatch
from environments.fakes import TargetMatching
from tests.waiting import wait_until

ACTION = np.zeros(1, np.float32)


class Stuck(TargetMatching):
    """Blocks in one of its calls until it is released."""

    def __init__(self, number, is_stuck=None):
        super().__init__(seed=1, length=5)
        self._left = number
        self.is_stuck, self.released = is_stuck, threading.Event()

    def reset(self):
        self._call()
        return super().reset()

    def step(self, action):
        self._call()
        return super().step(action)

    def _call(self):
        self._left -= 1
        if self._left == 0:
            self.is_stuck.set()
            assert self.released.wait(60)


@pytest.fixture
def kills(monkeypatch):
    found = []
    monkeypatch.setattr(lp, "make_node_killer", lambda: lambda *details: found.append(details))
    return found


def watch(env_timeout, make):
    """A watch of environments that `make` makes, a function of the seed."""
    task = SimpleNamespace(name="fakes:target", make=make)
    plan = SimpleNamespace(task=task, env_engine="dm_control", env_timeout=env_timeout)
    return EnvironmentWatch("actor 3", plan)


def play(environment, num_calls):
    timestep = None
    for _ in range(num_calls):
        is_new = timestep is None or timestep.last()
        timestep = environment.reset() if is_new else environment.step(ACTION)


def release_once_killed(kills, environment):
    deadline = time.monotonic() + 50
    while not kills and time.monotonic() < deadline:
        time.sleep(0.01)
    environment.released.set()


def test_a_constructor_that_does_not_return_kills_the_node(kills, monkeypatch):
    monkeypatch.setattr(environment_watch, "_SECONDS_TO_CONSTRUCT", 0.3)
    stuck = Stuck(-1)

    def make(seed):
        release_once_killed(kills, stuck)
        return stuck

    with watch(0.1, make) as watching, watching.make(1) as environment:
        assert environment.released is stuck.released
    ((error, seconds),) = kills
    assert re.fullmatch(
        r"actor 3: fakes:target: its constructor has not returned for 0\.3 s \(.*:\d+\); let it .*",
        str(error),
    )
    assert seconds > 0.3


@pytest.mark.parametrize(("number", "expected"), [(9, "step 2 of the episode"), (7, "reset")])
def test_a_call_that_does_not_return_kills_the_node(kills, monkeypatch, number, expected):
    """Episodes have five steps; other environments of the same actor do not matter."""
    is_stuck, passing = threading.Event(), itertools.count()
    # No time passes in other calls, which may take long on a busy machine.
    clock = SimpleNamespace(
        monotonic=lambda: next(passing) if is_stuck.is_set() else 0, perf_counter=time.perf_counter
    )
    monkeypatch.setattr(environment_watch, "time", clock)
    made = [Stuck(-1), Stuck(number, is_stuck)]
    with watch(0.3, lambda seed: made[seed]) as watching:
        environments, (other, environment) = watching.make_all([0, 1])
        assert environments.size == 2
        play(other, 3)
        killer = threading.Thread(target=release_once_killed, args=(kills, environment))
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


def test_many_calls_that_return_and_time_between_them_are_no_fault(kills, monkeypatch):
    now, num_readings = 0.0, 0

    def read():
        nonlocal num_readings
        num_readings += 1
        return now

    def pass_time():
        """Lets time pass that counts as a fifth of the timeout, and waits for two looks."""
        nonlocal now
        now += 1.0
        seen = num_readings
        wait_until(lambda: num_readings >= seen + 6)

    class Slow(Stuck):
        def _call(self):
            pass_time()

    clock = SimpleNamespace(monotonic=read, perf_counter=time.perf_counter)
    monkeypatch.setattr(environment_watch, "time", clock)
    with watch(0.2, lambda seed: Slow(-1)) as watching:
        environment = watching.make(0)
        play(environment, 8)
        for _ in range(8):
            pass_time()
    assert kills == []
