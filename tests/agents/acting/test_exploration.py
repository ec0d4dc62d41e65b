"""Exploration: schedules and noise, and a function of a user's own."""

import numpy as np
import pytest

from agents.acting.exploration import GaussianNoise, LinearSchedule, make_exploration
from agents.config import NoiseSettings
from rl_replicator.errors import ConfigError


def test_noise_falls_linearly_and_then_no_further():
    schedule = LinearSchedule(1.0, 0.1, 100)
    np.testing.assert_allclose([schedule(s) for s in (0, 50, 100, 500)], [1.0, 0.55, 0.1, 0.1])
    steps = 0
    noise = GaussianNoise(lambda: LinearSchedule(0.2, 0.0, 10)(steps), np.random.default_rng(0))
    draws = np.concatenate([noise(np.zeros(1000, np.float32)) for _ in range(3)])
    assert draws.dtype == np.float32 and abs(draws.std() - 0.2) < 0.01
    steps = 10
    assert not noise(np.zeros(3, np.float32)).any()


def own_exploration(config, random, environment_steps):
    """An exploration that a user names by its import path; it leaves the action range."""
    del random
    return lambda action: action + config.exploration_sigma * environment_steps()


def test_an_exploration_by_import_path_is_clipped_to_the_action_range():
    config = NoiseSettings(exploration=f"{__name__}:own_exploration", exploration_sigma=0.25)
    steps = 1
    explore = make_exploration(config, np.random.default_rng(0), lambda: steps)
    action = np.array([-0.5, 0.5], np.float32)
    np.testing.assert_allclose(explore(action), [-0.25, 0.75])
    steps = 10
    np.testing.assert_allclose(explore(action), [1.0, 1.0])
    assert explore(action).dtype == np.float32


def test_none_is_no_exploration():
    explore = make_exploration(
        NoiseSettings(exploration="none"), np.random.default_rng(0), lambda: 0
    )
    np.testing.assert_array_equal(explore(np.array([0.5], np.float32)), [0.5])


def test_an_unknown_exploration_is_refused():
    config = NoiseSettings(exploration="gausian")
    with pytest.raises(ConfigError, match="--agent.exploration: expected gaussian, none or"):
        make_exploration(config, np.random.default_rng(0), lambda: 0)
