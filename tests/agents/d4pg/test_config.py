"""Settings that make no sense."""

import pytest

from agents.d4pg.config import D4PGConfig
from rl_replicator.errors import ConfigError


@pytest.mark.parametrize(
    ("setting", "option"),
    [
        ({"global_batch_size": -1}, "--agent.global-batch-size: expected .* got -1"),
        ({"discount": 1.0}, "--agent.discount: expected .* got 1.0"),
        ({"policy_layers": ()}, "--agent.policy-layers"),
        ({"value_min": 2.0, "value_max": 1.0}, "--agent.value-min"),
    ],
)
def test_bad_settings_are_named(setting, option):
    with pytest.raises(ConfigError, match=option):
        D4PGConfig(**setting)
