"""dm_env's own conformance tests for every adapter and fake, and with our own for every task."""

import functools
import unittest

import numpy as np
import pytest
from dm_env import specs, test_utils

import environments
from environments import fakes
from tests.environments import gymnasium_fake

FRAME = environments.PixelConfig(height=8, width=12)
# test_numbers_and_form covers the tasks of dm_control.
MAKERS = {
    "chain": functools.partial(environments.make, "environments.fakes:chain", 1),
    "truncated_chain": functools.partial(
        environments.make, "environments.fakes:truncated_chain", 1
    ),
    "target": functools.partial(environments.make, "environments.fakes:target", 1),
    "raw chain": fakes.Chain,
    "limited": lambda: environments.make("environments.fakes:chain", 1, time_limit=3),
    "gymnasium": lambda: environments.adapt(gymnasium_fake.make(1), seed=1),
    "frames": lambda: environments.make("quadruped:escape", 1, FRAME),
    "frames without reward bounds": lambda: environments.make("lqr:lqr_2_1", 1, FRAME),
    "own frames": lambda: environments.make("environments.fakes:target", 1, FRAME),
    "frames of gymnasium": lambda: environments.make(f"{gymnasium_fake.__name__}:make", 1, FRAME),
}


CHECKS = [name for name in dir(test_utils.EnvironmentTestMixin) if name.startswith("test_")]
(FRESH,) = [name for name in CHECKS if "fresh" in name]


def follow(environment, checks):
    """Runs some of dm_env's checks on an environment."""

    class Case(test_utils.EnvironmentTestMixin, unittest.TestCase):
        def make_object_under_test(self):
            return environment

    for check in checks:
        Case(check).debug()


@pytest.mark.parametrize("name", MAKERS)
def test_follows_dm_env(name):
    # One environment serves all checks; the one about a fresh environment comes first.
    made = MAKERS[name]()
    follow(made, sorted(CHECKS, key=lambda check: check != FRESH))
    if "frames" in name:
        assert made.observation_spec() == specs.BoundedArray((8, 12, 3), np.uint8, 0, 255, "pixels")


def compare_numbers(ours, theirs):
    """Our shortcuts change no bit of raw observations, rewards and physics, over two episodes."""
    random = np.random.RandomState(1)
    shape = ours.action_spec().shape
    for _ in range(2):
        timestep, expected = ours.reset(), theirs.reset()
        for _ in range(4):
            assert list(timestep.observation) == list(expected.observation)
            for key, value in expected.observation.items():
                np.testing.assert_array_equal(timestep.observation[key], value)
            assert timestep.reward == expected.reward
            np.testing.assert_array_equal(ours.physics.get_state(), theirs.physics.get_state())
            action = random.uniform(-0.8, 0.8, shape)
            timestep, expected = ours.step(action), theirs.step(action)


@pytest.mark.parametrize("name", environments.names())
def test_numbers_and_form(name):
    """The numbers are those of plain dm_control, the form is what dm_env and the agents require.

    That is: dm_env's checks, the same random stream for the same seed, bounded rewards. Making an
    environment takes most of the time, so two serve all checks.
    """
    from dm_control import suite

    first, second = environments.make(name, 3), environments.make(name, 3)
    if name == "quadruped:escape":
        for _ in range(2):
            second.reset()
    else:
        theirs = suite.load(*name.split(":"), task_kwargs={"random": 3})
        compare_numbers(second.wrapped, theirs)
    follow(first, [FRESH])
    first.reset()  # The second reset of each, so that the random streams agree.
    assert first.action_spec().dtype == np.float32
    assert len(first.action_spec().shape) == 1
    assert first.action_spec().minimum == -1 and first.action_spec().maximum == 1
    spec = first.reward_spec()
    assert spec.maximum == 1
    assert spec.minimum == (-np.inf if name.startswith("lqr:") else 0)
    random = np.random.RandomState(0)
    kept = [first.reset()]
    twin = second.reset()
    for _ in range(5):
        np.testing.assert_array_equal(kept[-1].observation, twin.observation)
        assert kept[-1].reward == twin.reward
        action = random.uniform(-1, 1, first.action_spec().shape).astype(np.float32)
        kept.append(first.step(action))
        twin = second.step(action)
        assert isinstance(kept[-1].reward, np.float32) and isinstance(kept[-1].discount, np.float32)
        assert spec.minimum <= kept[-1].reward <= 1
    arrays = [timestep.observation for timestep in kept]
    assert all(array.dtype == np.float32 and array.ndim == 1 for array in arrays)
    assert len({array.ctypes.data for array in arrays}) == len(arrays)
    fields = first.observation_fields
    assert sum(where.stop - where.start for where in fields.values()) == arrays[0].size
    follow(first, [check for check in CHECKS if check != FRESH])
