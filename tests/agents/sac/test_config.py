"""Settings of SAC that are refused."""

import math

import pytest

from agents.sac.config import SACConfig
from rl_replicator.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("initial-temperature", [0.0, -1.0, math.inf, math.nan]),
        ("target-entropy", [math.inf, -math.inf, math.nan]),
        ("temperature-learning-rate", [0.0, 1.0, math.nan]),
        ("target-update-rate", [0.0, 1.1, math.nan]),
    ],
)
def test_numbers(name, values):
    for value in values:
        with pytest.raises(
            ConfigError, match=f"--agent.{name}: expected a .*number.*, got {value}"
        ):
            SACConfig(**{name.replace("-", "_"): value})
    SACConfig(target_entropy=-3.0, target_update_rate=1.0)
