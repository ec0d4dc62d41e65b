"""Settings that make no sense, and those of runs that began before a setting existed."""

import math

import numpy as np
import pytest
from acme import specs

from agents.config import resolved
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig, PixelD4PGConfig
from rl_replicator.errors import ConfigError


@pytest.mark.parametrize(
    ("setting", "option"),
    [
        ({"global_batch_size": -1}, "--agent.global-batch-size: expected .* got -1"),
        ({"discount": 1.0}, "--agent.discount: expected .* got 1.0"),
        ({"discount": "auto"}, "--agent.discount: expected .* got auto"),
        ({"policy_layers": ()}, "--agent.policy-layers"),
        ({"policy_average": 0}, "--agent.policy-average: expected .* got 0"),
        ({"policy_average": 10}, "--agent.policy-average: expected 1, or more than 10: .* got 10"),
        ({"value_min": 2.0, "value_max": 1.0}, "--agent.value-min"),
        ({"value_min": -1e39}, "--agent.value-min: expected a number from .*, got -1e.39"),
        ({"value_max": math.nan}, "--agent.value-max: expected a number from .*, got nan"),
        ({"max_gradient_norm": math.inf}, "--agent.max-gradient-norm: .* or None, got inf"),
        ({"max_action_gradient_norm": 1e38}, "--agent.max-action-gradient-norm: .* got 1e.38"),
        ({"preactivation_penalty": math.inf}, "--agent.preactivation-penalty: .* got inf"),
    ],
)
def test_bad_settings_are_named(setting, option):
    with pytest.raises(ConfigError, match=option):
        D4PGConfig(**setting)


def test_the_discount_from_pixels_is_that_of_as_many_simulator_steps():
    open_config = PixelD4PGConfig()
    found = {repeat: resolved(open_config, {}, repeat).discount for repeat in (1, 2, 4, 8)}
    assert found[8] == pytest.approx(0.97, abs=1e-12)
    for repeat, discount in found.items():
        assert discount == pytest.approx(found[1] ** repeat, abs=1e-12)
    assert resolved(PixelD4PGConfig(discount=0.9), {}, 4).discount == 0.9
    assert resolved(D4PGConfig(), {}, 4) == D4PGConfig()
    frames = specs.BoundedArray((64, 64, 3), np.uint8, 0, 255)
    spec = specs.EnvironmentSpec(
        observations=frames,
        actions=specs.BoundedArray((2,), np.float32, -1.0, 1.0),
        rewards=specs.BoundedArray((), np.float32, 0.0, 1.0),
        discounts=specs.BoundedArray((), np.float32, 0.0, 1.0),
    )
    assert D4PG(resolved(open_config, {}, 8), spec).discount == found[8]
    with pytest.raises(ConfigError, match='expected a number, got "auto", which a run replaces'):
        D4PG(open_config, spec)


@pytest.mark.parametrize(
    ("rewards", "support"),
    [((0, 1), (0, 100)), ((-2, -1), (-200, 0)), ((0.5, 1), (0, 100)), ((-1, 2), (-100, 200))],
)
def test_the_support_holds_the_returns_of_episodes_that_end_soon(rewards, support):
    """The last step's return is one reward, outside the range of sums over endless episodes."""
    spec = specs.EnvironmentSpec(
        observations=specs.Array((3,), np.float32),
        actions=specs.BoundedArray((2,), np.float32, -1.0, 1.0),
        rewards=specs.BoundedArray((), np.float32, *rewards),
        discounts=specs.BoundedArray((), np.float32, 0.0, 1.0),
    )
    atoms = D4PG(D4PGConfig(discount=0.99), spec).atoms()
    assert (atoms[0], atoms[-1]) == pytest.approx(support, rel=1e-4)
