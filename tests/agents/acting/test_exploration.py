"""Exploration: schedules, noise and user-defined functions."""

import copy

import numpy as np
import pytest
from dm_env import specs

from agents.acting.exploration import make_exploration, with_range
from agents.agent import ExplorationContext
from agents.config import NoiseSettings
from rl_replicator.errors import ConfigError


def context(seed=0, **changes):
    return ExplorationContext(np.random.default_rng(seed), **changes)


def continuous(size):
    return specs.BoundedArray((size,), np.float32, -1.0, 1.0)


def own_exploration(config, context):
    """An exploration that a user names by its import path."""
    return lambda action: action + config.exploration_sigma * context.environment_steps()


def test_an_exploration_by_import_path():
    config = NoiseSettings(exploration=f"{__name__}:own_exploration", exploration_sigma=0.25)
    steps = 1
    explore = make_exploration(config, context(environment_steps=lambda: steps))
    action = np.array([-0.5, 0.5], np.float32)
    np.testing.assert_allclose(explore(action), [-0.25, 0.75])
    steps = 10
    np.testing.assert_allclose(explore(action), [2.0, 3.0])


def test_actions_are_clipped_and_extras_are_not():
    explore = with_range(lambda outputs: (outputs * 3.0, outputs), continuous(3), "Agent")
    outputs = np.array([-0.5, 0.25, 1.0])
    action, extras = explore(outputs)
    np.testing.assert_array_equal(action, [-1.0, 0.75, 1.0])
    assert action.dtype == np.float32 and extras is outputs


@pytest.mark.parametrize(
    ("explored", "received"),
    [
        (np.zeros(2), "ndarray"),  # Would be unpacked as a pair.
        ((np.zeros(3), ()), r"an action of shape \(3,\)"),
    ],
)
def test_an_agents_exploration_that_returns_something_else_is_refused(explored, received):
    message = rf"of Mine: expected a function to \(action of shape \(2,\), .* got {received}; ret"
    with pytest.raises(ConfigError, match=message):
        with_range(lambda outputs: explored, continuous(2), "Mine")(np.zeros(2))


def with_extras(config, context):
    """Explores with a pair (action, extras), which only an agent's own exploration may return."""
    return lambda action: (action, action)


def of_one_dimension(config, context):
    return lambda action: action[:1]


def not_a_number(config, context):
    return lambda action: np.full_like(action, np.nan)


@pytest.mark.parametrize("random_steps", [0, 9])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("with_extras", r"an array of shape \(2,\), got a tuple; return"),
        ("of_one_dimension", r"an array of shape \(2,\), got \(1,\); return"),
        ("not_a_number", r"numbers, got \[nan, nan\] for"),
    ],
)
def test_an_exploration_that_returns_something_else_is_refused(name, message, random_steps):
    """Before the random actions, too. NumPy once stacked the tuple into two rows."""
    name = f"{__name__}:{name}"
    settings = NoiseSettings(exploration=name, exploration_random_steps=random_steps)
    with pytest.raises(ConfigError, match=f"--agent.exploration: expected {message}"):
        make_exploration(settings, context())(np.zeros(2, np.float32))


def since_the_random_actions(config, context):
    start = config.exploration_random_steps
    return lambda action: action / np.sqrt(1 + context.environment_steps() - start)


def in_place(config, context):
    def explore(action):
        context.memory["last"] = action
        action += context.random.normal()
        return action

    return explore


def test_an_exploration_is_not_to_blame_for_the_nan_of_the_policy():
    explore = make_exploration(NoiseSettings(exploration=f"{__name__}:not_a_number"), context())
    assert np.isnan(explore(np.full(1, np.nan, np.float32))).all()


def test_the_trial_of_an_exploration_leaves_no_trace():
    # It sees the environment step at which the exploration is first used.
    name = f"{__name__}:since_the_random_actions"
    settings = NoiseSettings(exploration=name, exploration_random_steps=9)
    make_exploration(settings, context())(np.ones(2, np.float32))
    # It changes neither the random generator nor the memory nor the action.
    tried, plain = context(), context()
    action = np.zeros(2, np.float32)
    settings = NoiseSettings(exploration=f"{__name__}:in_place", exploration_random_steps=9)
    first = make_exploration(settings, tried)(action)
    settings = NoiseSettings(exploration="none", exploration_random_steps=9)
    np.testing.assert_array_equal(first, make_exploration(settings, plain)(action))
    assert "last" not in tried.memory and not action.any()


def test_the_first_actions_are_random_and_held_for_a_while():
    config = NoiseSettings(exploration="none", exploration_random_steps=5000)
    steps = 0
    explore = make_exploration(config, context(environment_steps=lambda: steps))
    action = np.full(3, 0.5, np.float32)
    actions = []
    for _ in range(5000):
        actions.append(explore(action))
        steps += 1
    draws = np.stack(actions)
    assert draws.dtype == np.float32
    # Uniform on [-1, 1], with some 600 draws per dimension, which change at different times.
    np.testing.assert_allclose(draws.mean(axis=0), 0.0, atol=0.1)
    np.testing.assert_allclose(draws.std(axis=0), 3**-0.5, rtol=0.1)
    changes = np.diff(draws, axis=0) != 0
    np.testing.assert_allclose(changes.mean(axis=0), 1 / 8, rtol=0.2)
    assert 0.2 < changes.any(axis=1).mean() < 0.45
    np.testing.assert_array_equal(explore(action), action)


def remembering(config, context):
    """A user-defined exploration that sums the arrays in its memory."""

    def explore(action):
        total = sum(context.memory.values(), np.zeros_like(action))
        context.memory["last"] = action
        return total

    return explore


def test_the_memory_is_empty_when_the_random_actions_are_over():
    config = NoiseSettings(exploration=f"{__name__}:remembering", exploration_random_steps=3)
    steps = 0
    one = context(environment_steps=lambda: steps)
    explore, action = make_exploration(config, one), np.full(2, 0.25, np.float32)
    explore(action)
    assert one.memory  # Checkpoints hold the random action.
    steps = 3
    np.testing.assert_array_equal(explore(action), [0, 0])
    np.testing.assert_array_equal(explore(action), action)


def test_pink_noise_has_the_deviation_of_white_noise_and_a_spectrum_that_falls_like_1_over_f():
    def draw(name):
        config = NoiseSettings(exploration=name, exploration_sigma=0.1)
        explore = make_exploration(config, context())
        return np.stack([explore(np.zeros(64, np.float32)) for _ in range(4096)])

    slopes = {}
    for name in ("gaussian", "pink"):
        noise = draw(name)
        assert noise.dtype == np.float32
        np.testing.assert_allclose(noise.std(), 0.1, rtol=0.05)
        correlation = np.corrcoef(noise.T)[0, 1:]
        assert np.abs(correlation).mean() < 0.2  # The dimensions are independent.
        power = (np.abs(np.fft.rfft(noise, axis=0)) ** 2).mean(axis=1)
        band = slice(4096 // 256, 4096 // 4)  # Periods of 4 to 256 actions.
        slopes[name] = np.polyfit(np.log(np.arange(4096 // 2 + 1)[band]), np.log(power[band]), 1)[0]
    assert abs(slopes["gaussian"]) < 0.1
    assert -1.3 < slopes["pink"] < -0.8


def test_noise_is_held_for_k_actions_as_often_as_k_to_the_minus_2():
    config = NoiseSettings(exploration="held", exploration_sigma=0.1)
    explore = make_exploration(config, context())
    noise = np.stack([explore(np.zeros(2, np.float32)) for _ in range(40_000)])
    assert noise.dtype == np.float32
    changes = np.flatnonzero((np.diff(noise, axis=0) != 0).all(axis=1))
    assert len(changes) == (np.diff(noise, axis=0) != 0).any(axis=1).sum()
    lengths, expected = np.diff(changes), np.arange(1, 17) ** -2.0
    found = np.bincount(lengths, minlength=17) / len(lengths)
    np.testing.assert_allclose(found[1:], expected / expected.sum(), atol=0.01)
    np.testing.assert_allclose(noise[changes].std(axis=0), 0.1, rtol=0.03)


@pytest.mark.parametrize("name", ["pink", "held"])
def test_noise_continues_from_the_memory_of_its_context(name):
    config = NoiseSettings(exploration=name)
    one = context(3)
    explore, zeros = make_exploration(config, one), np.zeros(2, np.float32)
    for _ in range(5):
        explore(zeros)
    other = context(4, memory=copy.deepcopy(one.memory))
    other.random.bit_generator.state = one.random.bit_generator.state
    resumed = make_exploration(config, other)
    for _ in range(3):
        np.testing.assert_array_equal(explore(zeros), resumed(zeros))


def test_environments_explore_on_a_ladder_around_the_configured_noise():
    """From sigma / 2 to 2 sigma in equal factors; a single environment uses sigma itself."""
    config = NoiseSettings(exploration_sigma=0.04, exploration_sigma_end=0.08, exploration_steps=10)
    zeros = np.zeros(20_000, np.float32)

    def deviation(rank, steps):
        noise = make_exploration(config, context(rank=rank, environment_steps=lambda: steps))
        return noise(zeros).std()

    for steps, sigma in ((0, 0.04), (5, 0.06), (10, 0.08), (500, 0.08)):
        deviations = [deviation(rank, steps) for rank in (0.0, 0.25, 0.5, 0.75, 1.0)]
        expected = sigma * 2.0 ** np.array([-1, -0.5, 0, 0.5, 1])
        np.testing.assert_allclose(deviations, expected, rtol=0.02)
    equal = NoiseSettings(exploration_sigma=0.04, exploration_spread=1.0)
    draws = [make_exploration(equal, context(1, rank=rank))(zeros) for rank in (0.0, 0.9)]
    np.testing.assert_array_equal(*draws)
