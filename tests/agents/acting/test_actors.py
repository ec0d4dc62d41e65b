"""Actors on a policy of one weight: episodes, weights and batches."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from agents.acting.acting_policy import ActingPolicy, LatestObservation
from agents.acting.actors import ACTIONS_PER_UPDATE, ExploringActor, PolicyActor

SPEC = tf.TensorSpec([2], tf.float32)


class SumOfEpisode:
    """The agent's observation is the sum of the environment's observations in the episode."""

    def __init__(self):
        self._sum = np.full(2, np.nan, np.float32)

    def reset(self):
        self._sum = np.zeros(2, np.float32)

    def observe(self, observation):
        self._sum = self._sum + observation
        return self._sum


class Scale(snt.Module):
    def __init__(self):
        super().__init__(name="policy")
        self.w = tf.Variable(0.0, name="w")

    def __call__(self, observation):
        return self.w * observation


class Source:
    """Serves the weight 1 at first, 2 next, and so on."""

    def __init__(self, names=("policy",)):
        self.requests = 0
        self._names = list(names)

    def get_variables(self, names):
        assert list(names) == self._names
        self.requests += 1
        return {"policy/w": np.float32(self.requests)}


class Adder:
    def __init__(self):
        self.firsts, self.steps = [], []

    def add_first(self, timestep):
        self.firsts.append(timestep)

    def add(self, action, next_timestep, extras):
        self.steps.append((action, next_timestep, extras))


def make_policy(act=lambda outputs: outputs):
    scale = Scale()
    return ActingPolicy({"policy": scale}, lambda o: act(scale(o)), SPEC, SumOfEpisode)


# `compile_policy` does not translate tf.sort to NumPy, so TensorFlow runs that policy.
@pytest.mark.parametrize("act", [tf.identity, lambda outputs: -tf.sort(-outputs)])
def test_an_evaluator_acts_on_its_episode_with_the_weights_of_its_last_update(act):
    actor, row = PolicyActor(make_policy(act), source := Source()), np.array([1.0, -2.0], "f")
    np.testing.assert_array_equal(actor.last_observation, [0.0, 0.0])
    for weight in (1.0, 2.0):
        actor.observe_first(None)
        for count in (1, 2):
            np.testing.assert_array_equal(actor.select_action(row), weight * count * row)
            np.testing.assert_array_equal(actor.last_observation, count * row)
            actor.observe(row, None)
        actor.update()
    assert source.requests == 3


@pytest.mark.parametrize("is_nest", [False, True])
def test_every_environment_has_its_own_episode_exploration_and_adder(is_nest):
    action, noise = np.zeros(2, np.float32), np.zeros(1, np.float32)

    def add(amount):
        def explore(outputs):  # All environments share these arrays.
            action[:] = (outputs["mean"] if is_nest else outputs) + np.float32(amount)
            noise[:] = amount
            return action, {"noise": noise}

        return explore

    policy = make_policy(
        (lambda outputs: {"mean": outputs}) if is_nest else lambda outputs: outputs
    )
    adders = [Adder(), Adder()]
    actor = ExploringActor(policy, source := Source(), [add(10), add(20)], adders)
    rows = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    for index in (0, 1):
        actor.begin(index, f"first {index}")
    np.testing.assert_array_equal(actor.select_actions(rows), [[11, 12], [23, 24]])
    actor.begin(1, "second 1")
    actions = actor.select_actions(rows)
    np.testing.assert_array_equal(actions, [[12, 14], [23, 24]])
    for index in (0, 1):
        actor.observe(index, actions[index], f"next {index}")
    assert [adder.firsts for adder in adders] == [["first 0"], ["first 1", "second 1"]]
    for index, adder in enumerate(adders):
        ((action, timestep, extras),) = adder.steps
        np.testing.assert_array_equal(action, actions[index])
        assert (timestep, extras) == (f"next {index}", {"noise": 10 * (index + 1)})
    assert source.requests == 1
    actor.update()
    assert source.requests == 2


def test_a_policy_with_a_memory_starts_each_episode_anew():
    """Its action is the sum of the episode's observations; extras have the sum before each."""

    def act(observation, state):
        return state + observation, state + observation

    policy = ActingPolicy({}, act, SPEC, LatestObservation, state_size=2)
    adders, row = [Adder(), Adder()], np.array([1.0, 2.0], np.float32)
    extra = {"noise": np.zeros(1, np.float32)}
    explorations = [lambda outputs: (outputs, ()), lambda outputs: (outputs, extra)]
    actor = ExploringActor(policy, Source([]), explorations, adders)
    for index in (0, 1):
        actor.begin(index, "first")
    for counts in ((1, 1), (2, 2), (3, 1), (4, 2)):
        if counts == (3, 1):
            actor.begin(1, "second")
        actions = actor.select_actions([row, 10 * row])
        np.testing.assert_array_equal(actions, [counts[0] * row, counts[1] * 10 * row])
        for index in (0, 1):
            actor.observe(index, actions[index], "next")
    found = [[extras for *_, extras in adder.steps] for adder in adders]
    for count, extras in enumerate(found[0]):
        np.testing.assert_array_equal(extras["state"], count * row)
    for count, extras in zip((0, 1, 0, 1), found[1], strict=True):
        np.testing.assert_array_equal(extras["state"], count * 10 * row)
        assert extras["noise"] == 0
    evaluator = PolicyActor(policy, Source([]))
    for _ in range(2):
        evaluator.observe_first(None)
        for count in (1, 2):
            np.testing.assert_array_equal(evaluator.select_action(row), count * row)


def test_weights_are_fetched_every_250_actions_of_all_environments():
    actor = ExploringActor(make_policy(), source := Source(), [None, None], [Adder(), Adder()])
    assert ACTIONS_PER_UPDATE == 250
    requests = []
    for step in range(1, 601):
        actor.observe(step % 2, np.zeros(2, np.float32), None)
        requests.append(source.requests)
    assert [requests.index(n) + 1 for n in (2, 3)] == [250, 500] and requests[-1] == 3
