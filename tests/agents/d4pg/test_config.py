"""Settings that make no sense, and those of runs that began before a setting existed."""

import pytest

from agents.config import restored
from agents.d4pg.config import D4PGConfig, PixelD4PGConfig
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


@pytest.mark.parametrize(("kind", "prior"), [(D4PGConfig, "uniform"), (PixelD4PGConfig, "zero")])
def test_the_prior_of_runs_without_an_option_for_it(kind, prior):
    """From pixels the critic started near 0 already."""
    assert restored(kind, {}).critic_prior == prior
    assert restored(kind, {"critic_prior": "uniform"}).critic_prior == "uniform"


def test_runs_without_an_option_for_it_are_evaluated_with_the_newest_weights():
    assert restored(D4PGConfig, {}).policy_average == 1
    assert restored(D4PGConfig, {"policy_average": 50}).policy_average == 50


@pytest.mark.parametrize(("kind", "kept"), [(D4PGConfig, "tanh"), (PixelD4PGConfig, "inverting")])
def test_the_gradient_of_runs_without_an_option_for_it(kind, kept):
    assert restored(kind, {}).squash_gradient == kept
    assert restored(kind, {"squash_gradient": "tanh"}).squash_gradient == "tanh"


def test_a_run_of_before_keeps_the_items_of_its_table():
    assert restored(D4PGConfig, {"replay": {"min_size": 5}}).replay.transitions_per_item == 1
    later = restored(D4PGConfig, {"replay": {"min_size": 5, "transitions_per_item": 4}})
    assert (later.replay.transitions_per_item, later.replay.min_size) == (4, 5)
