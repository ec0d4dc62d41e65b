"""The learner's step: replicas agree with one device, targets are copied when due."""

import numpy as np
import pytest
import tensorflow as tf
from acme import specs

import rl_replicator as rr
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.learning.targets import update_targets
from agents.learning.variables import copy_variables
from rl_replicator.errors import ConfigError
from tests.agents.fixed_samples import make_samples, make_spec

BATCH = 32
STEPS = 20


def train(replicator_name, config, steps_per_call):
    """Trains on the fixed batches; returns weights by path, and the priorities in row order."""
    replicator = rr.make(replicator_name)
    agent = D4PG(config, make_spec())
    with replicator.scope():
        tf.random.set_seed(5)
        module = agent.make_module(replicator, total_steps=STEPS)
        start = np.random.default_rng(7)
        for network in (module.online.policy, module.online.critic):
            for variable in network.trainable_variables:
                variable.assign(start.normal(scale=0.3, size=variable.shape).astype(np.float32))
        update_targets(
            module.target.trainable_variables, module.online.trainable_variables, rate=1.0
        )

    samples = make_samples(STEPS * BATCH)

    def input_fn(context):
        size = context.per_replica_batch_size(BATCH)
        return tf.data.Dataset.from_tensor_slices(samples).batch(size, drop_remainder=True)

    networks = {
        "policy": module.online.policy,
        "critic": module.online.critic,
        "target_policy": module.target.policy,
        "target_critic": module.target.critic,
    }
    before = copy_variables(networks, ["policy", "critic"])
    inputs = replicator.make_inputs(input_fn)
    step = replicator.replicate(module.step_fn, inputs, steps_per_call)
    priorities = {}
    for _ in range(STEPS // steps_per_call):
        for output in replicator.local_results(step()):
            keys = output.keys.numpy().ravel().tolist()
            priorities.update(zip(keys, output.priorities.numpy().ravel(), strict=True))
    weights = copy_variables(networks, networks)
    for path, array in before.items():
        assert np.abs(weights[path] - array).max() > 1e-4, f"{path} was not trained"
    return weights, np.array([priorities[key] for key in sorted(priorities)])


@pytest.mark.slow
def test_replicas_train_as_one_device_does():
    """N replicas with B / N examples: within 1e-4 of one replica with B after 20 Adam steps.

    Two replicas, step by step, are in test_reference.py.
    """
    config = D4PGConfig(
        policy_layers=(16, 16), critic_layers=(16, 16), target_update_period=7, num_atoms=21
    )
    one, priorities_one = train("single_device", config, steps_per_call=1)
    many, priorities_many = train("multi_device:4", config, steps_per_call=5)
    assert sorted(one) == sorted(many)
    for path, array in one.items():
        np.testing.assert_allclose(many[path], array, rtol=1e-4, atol=1e-4, err_msg=path)
    np.testing.assert_allclose(priorities_many, priorities_one, rtol=1e-3, atol=1e-4)
    assert len(priorities_one) == STEPS * BATCH


@pytest.mark.slow
def test_targets_follow_when_due_and_only_then():
    layers = {"policy_layers": (8,), "critic_layers": (8,)}
    never, _ = train("single_device", D4PGConfig(**layers, target_update_period=1000), 5)
    always, _ = train("single_device", D4PGConfig(**layers, target_update_period=STEPS), 5)
    for path, array in always.items():
        if path.startswith("target_"):
            online = always[path.removeprefix("target_")]
            np.testing.assert_array_equal(array, online)
    path = "target_critic/head/w"
    assert np.abs(never[path] - never[path.removeprefix("target_")]).max() > 1e-3


def test_the_value_range_follows_from_rewards_and_discount():
    agent = D4PG(D4PGConfig(discount=0.9, num_atoms=11), make_spec())
    np.testing.assert_allclose(agent.atoms(), np.linspace(0, 10, 11), rtol=1e-6)
    agent = D4PG(D4PGConfig(discount=0.9, num_atoms=3, value_min=-2.0), make_spec())
    np.testing.assert_allclose(agent.atoms(), [-2, 4, 10], rtol=1e-6)


def test_rewards_without_bounds_ask_for_a_value_range():
    spec = make_spec(rewards=specs.Array((), np.float32))
    with pytest.raises(ConfigError, match="--agent.value-min and --agent.value-max"):
        D4PG(D4PGConfig(), spec)
    D4PG(D4PGConfig(value_min=0.0, value_max=3.0), spec)


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
