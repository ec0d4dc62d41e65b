"""Tests of discrete actions: every combination is one number, and goes there and back."""

import itertools
import pickle
from importlib import metadata

import gymnasium
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

import environments
from environments import PixelConfig, PixelEnvironment, examination, flat
from tests.environments.discrete_fakes import Buttons, Catch, SeenButtons


def test_every_combination_of_several_numbers_is_one_action():
    environment = environments.adapt(Buttons(0, is_masked=False))
    spec = environment.action_spec()
    assert isinstance(spec, specs.DiscreteArray)
    assert (spec.num_values, spec.dtype, spec.shape) == (6, np.int32, ())
    own = [environment.actions.own(np.int32(action)) for action in range(6)]
    combinations = list(itertools.product((0, 1), (5, 6, 7)))
    assert [tuple(action) for action in own] == combinations
    np.testing.assert_array_equal(environment.actions.from_own(np.array(own)), range(6))
    with pytest.raises(ValueError, match="invalid entry"):
        environment.actions.from_own(np.array([[0, 8]]))
    own_spec = environment.own_action_spec
    assert (own_spec.minimum.tolist(), own_spec.maximum.tolist()) == ([0, 5], [1, 7])


@pytest.mark.parametrize(
    ("space", "own"),
    [
        (spaces.Discrete(3, start=-1), [-1, 0, 1]),
        (spaces.Box(1, 2, (2,), np.int16), [[1, 1], [1, 2], [2, 1], [2, 2]]),
        (spaces.MultiBinary(2), [[0, 0], [0, 1], [1, 0], [1, 1]]),
    ],
)
def test_spaces_of_gymnasium(space, own):
    inner = Buttons(0, is_masked=False)
    inner.action_space = space
    environment = environments.adapt(inner)
    environment.reset()
    assert environment.action_spec().num_values == len(own)
    for action in range(len(own)):
        taken = environment.actions.own(np.int32(action))
        np.testing.assert_array_equal(taken, own[action])
        assert space.contains(taken)
    taken += 1  # The environment may keep and change it.
    np.testing.assert_array_equal(environment.actions.own(len(own) - 1), own[-1])


def test_a_package_registers_its_namespace_by_an_entry_point(monkeypatch):
    """As MinAtar does."""
    group = "gymnasium.envs"
    point = metadata.EntryPoint("toys", "tests.environments.odd:register_toys", group)
    found = {(group, "toys"): [point]}
    monkeypatch.setattr(metadata, "entry_points", lambda group, name: found.get((group, name), []))
    environments.make("gym:toys/Odd-v0", seed=0).reset()
    with pytest.raises(environments.EnvironmentNameError, match="did you mean gym:toys/Odd-v0"):
        environments.make("gym:toys/Od-v0", seed=0)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (3, "expected an action from 0 to 2, got 3"),
        (np.array([1]), "expected the number of an action, got array"),
        (0.5, "expected the number of an action, got 0.5"),
    ],
)
def test_actions_that_do_not_exist(action, message):
    environment = environments.adapt(Catch(0))
    environment.reset()
    with pytest.raises(ValueError, match=message):
        environment.step(action)


def test_a_mask_is_the_end_of_the_observation_and_random_play_obeys_it():
    inner = Buttons(0)
    environment = environments.adapt(inner)
    spec = pickle.loads(pickle.dumps(environment.observation_spec()))
    assert (spec.shape, flat.mask_size(spec)) == ((7,), 6)
    assert environment.observation_fields == {"number": slice(0, 1), "action_mask": slice(1, 7)}
    act = flat.random_policy(environment, np.random.default_rng(0))
    for _ in range(30):
        timestep = environment.reset()
        while not timestep.last():
            np.testing.assert_array_equal(timestep.observation[1:], inner.mask)
            timestep = environment.step(act(timestep.observation))
    numbers = environment.actions.from_own(np.array(inner.taken))
    assert all(mask[number] for mask, number in zip(inner.legal, numbers, strict=True))
    assert len(set(numbers)) == 6


def test_a_wrapper_keeps_the_mask_or_is_refused():
    name = "tests.environments.discrete_fakes:make_buttons"
    wrapped = environments.make(name, seed=0, wrap=[f"{__name__}:unchanged"])
    assert flat.mask_size(wrapped.observation_spec()) == 6
    with pytest.raises(environments.EnvironmentSpecError, match="a wrapper that keeps the mask"):
        environments.make(name, seed=0, wrap=[f"{__name__}:Forgetful"])


class Unchanged(flat.Environment):
    """A wrapper that passes everything on."""


def unchanged(environment):
    return Unchanged(environment)


class Forgetful(Unchanged):
    def observation_spec(self):
        return specs.Array((7,), np.float32)


class Stuck(Buttons):
    """Has no legal action."""

    def _observe(self):
        return {**super()._observe(), "action_mask": np.zeros(6, np.int8)}


def of_other_size():
    environment = Buttons(0)
    environment.observation_space["action_mask"] = spaces.MultiBinary(5)
    return environment


def with_many_actions():
    environment = Buttons(0)
    environment.action_space = spaces.MultiDiscrete([20, 20, 20])
    return environment


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (of_other_size, r"expected an action_mask of shape \(6,\), one .*; correct it"),
        (with_many_actions, "at most 4,096 discrete actions, got 8,000 combinations of 3 "),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(environments.EnvironmentSpecError, match=message) as caught:
        environments.adapt(make())
    assert "\n" not in str(caught.value)


def test_a_mask_without_legal_actions_is_an_error_of_the_environment():
    environment = environments.adapt(Stuck(0))
    with pytest.raises(environments.EnvironmentDataError, match="'action_mask' at step 0 .*legal"):
        environment.reset()


@pytest.mark.parametrize("names", [(), ("number",), ("all",)])
def test_a_mask_is_the_end_of_the_vector_beside_frames(names):
    frame = PixelConfig(render="observed", state=names)
    inner = SeenButtons(0)
    environment = PixelEnvironment(environments.adapt(inner, drops_images=True), frame)
    spec, size = environment.observation_spec(), 7 if names else 6
    assert (spec["vector"].shape, flat.mask_size(spec)) == ((size,), 6)
    act = flat.random_policy(environment, np.random.default_rng(0))
    timestep = environment.reset()
    for _ in range(50):
        vector = timestep.observation["vector"]
        np.testing.assert_array_equal(vector[-6:], inner.mask)
        assert vector.size == 6 or 255 * vector[0] == timestep.observation["pixels"].max()
        timestep = (
            environment.reset() if timestep.last() else environment.step(act(timestep.observation))
        )
    with pytest.raises(environments.EnvironmentSpecError, match="--action-repeat 1 with a mask"):
        PixelEnvironment(environments.adapt(SeenButtons(0), drops_images=True), frame, 2)


@pytest.mark.parametrize(
    ("kind", "observes"), [(Buttons, "7 numbers"), (SeenButtons, "frames of 36 x 36 x 1")]
)
def test_check_env_plays_legal_actions(kind, observes):
    inner: list[gymnasium.Env] = []

    def make(seed):
        inner.append(kind(seed))
        if kind is Buttons:
            return environments.adapt(inner[-1], seed)
        frame = PixelConfig(render="observed")
        return PixelEnvironment(environments.adapt(inner[-1], seed, drops_images=True), frame)

    findings = list(examination.examine(make, max_steps=20))
    assert "WRONG" not in [finding.verdict for finding in findings]
    text = f"observes {observes}, takes one of 6 actions, of which a mask says the legal ones"
    assert findings[0].text == text
    for each in inner:
        own = environments.adapt(each, drops_images=True).actions
        numbers = own.from_own(np.array(each.taken))
        assert all(mask[number] for mask, number in zip(each.legal, numbers, strict=True))
