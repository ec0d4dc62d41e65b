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
    "target": functools.partial(environments.make, "environments.fakes:target", 1),
    "raw chain": fakes.Chain,
    "limited": lambda: environments.make("environments.fakes:chain", 1, time_limit=3),
    "gymnasium": lambda: environments.adapt(gymnasium_fake.make(1), seed=1),
    "frames": lambda: environments.make("cartpole:swingup", 1, FRAME),
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


@pytest.mark.parametrize("name", environments.names())
def test_numbers_and_form(name):
    """The numbers are those of plain dm_control, the form is what dm_env and the agents require.

    That is: the same physics, bit by bit, for the same seed; dm_env's checks; bounded rewards.
    Making an environment takes most of the time, so one serves all checks.
    """
    from dm_control import suite

    made = environments.make(name, 3)
    if name == "quadruped:escape":  # dm_control's would load OpenGL.
        theirs = environments.make(name, 3).wrapped
    else:
        theirs = suite.load(*name.split(":"), task_kwargs={"random": 3})
    follow(made, [FRESH])
    theirs.reset()
    assert made.action_spec().dtype == np.float32 and len(made.action_spec().shape) == 1
    assert made.action_spec().minimum == -1 and made.action_spec().maximum == 1
    rewards = made.reward_spec()
    assert rewards.maximum == 1
    assert rewards.minimum == (-np.inf if name.startswith("lqr:") else 0)
    random, kept = np.random.RandomState(1), []
    for _ in range(2):
        timestep, expected = made.reset(), theirs.reset()
        for _ in range(4):
            arrays = [np.ravel(each) for each in expected.observation.values()]
            flat = np.concatenate(arrays).astype(np.float32)
            np.testing.assert_array_equal(timestep.observation, flat)
            physics = [each.physics.get_state() for each in (made.wrapped, theirs)]
            np.testing.assert_array_equal(*physics)
            kept.append(timestep.observation)
            action = random.uniform(-0.8, 0.8, made.action_spec().shape).astype(np.float32)
            timestep, expected = made.step(action), theirs.step(made.actions.own(action))
            assert timestep.reward == np.float32(expected.reward)
            assert rewards.minimum <= timestep.reward <= 1
            assert isinstance(timestep.reward, np.float32)
            assert isinstance(timestep.discount, np.float32)
    assert all(array.dtype == np.float32 and array.ndim == 1 for array in kept)
    assert len({array.ctypes.data for array in kept}) == len(kept)
    fields = made.observation_fields.values()
    assert sum(where.stop - where.start for where in fields) == kept[0].size
    follow(made, [check for check in CHECKS if check != FRESH])
