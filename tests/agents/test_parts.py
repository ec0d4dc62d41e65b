"""Unusable user-defined parts: one line says what was expected."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
from acme import specs

import rl_replicator as rr
from agents.agent import ExplorationContext
from agents.config import OffPolicyConfig
from agents.networks.actor_critic import ScalarCritic
from agents.off_policy_agent import OffPolicyAgent
from agents.sac.agent import SAC
from agents.sac.config import SACConfig
from agents.td3.agent import TD3
from agents.td3.config import PixelTD3Config, TD3Config
from rl_replicator.errors import ConfigError
from tests.agents.fixed_samples import Weights, make_spec

SMALL = {"policy_layers": (4,), "critic_layers": (4,)}


def nothing(layer_sizes, name):
    return None


def function(layer_sizes, name):
    """The variables of its layer could not be found."""
    layer = snt.Linear(layer_sizes[-1])
    return lambda x: layer(x)


def without_batch(layer_sizes, name):
    layer = snt.Linear(layer_sizes[-1], name="layer")
    return snt.Sequential([layer, lambda x: tf.reduce_mean(x, 0)], name)


def maps(dtype, name):
    layers = [lambda x: tf.cast(x, tf.float32), snt.Conv2D(2, 3, name="layer")]
    return snt.Sequential(layers, name)


def in_bfloat16(dtype, name):
    return snt.Sequential([maps(dtype, "maps"), snt.Flatten(), lambda x: tf.cast(x, dtype)], name)


def agent_with(setting, part):
    path = f"{__name__}:{part}"
    if setting == "torso":
        return SAC(SACConfig(**SMALL, torso=path), make_spec())
    config = PixelTD3Config(**SMALL, encoder=path, precision="bfloat16")
    return TD3(config, make_spec(specs.BoundedArray((8, 8, 3), np.uint8, 0, 255)))


@pytest.mark.parametrize(
    ("setting", "part", "message"),
    [
        ("torso", "function", "expected a function that returns a module, .* got a function"),
        ("torso", "without_batch", r"expected features of shape \(1, None\), got \(4,\)"),
        ("encoder", "nothing", "expected a function that returns a mod.* got a NoneType"),
        ("encoder", "maps", r"expected features of shape \(1, None\), got \(1, 8, 8, 2\)"),
        ("encoder", "in_bfloat16", "expected float32 features, got bfloat16; cast them"),
    ],
)
def test_a_part_that_is_none(setting, part, message):
    with pytest.raises(ConfigError, match=f"--agent.{setting}: {message}") as error:
        agent_with(setting, part).make_acting_networks()
    assert "\n" not in str(error.value)


class Projection(snt.Module):
    """A layer on random features, whose weights `keep` stores."""

    keep = staticmethod(tf.identity)

    def __init__(self, layer_sizes, name):
        super().__init__(name=name)
        self._layer = snt.Linear(layer_sizes[-1], name="layer")
        self._weights = None

    def __call__(self, inputs):
        if self._weights is None:
            self._weights = self.keep(tf.random.normal([inputs.shape[-1], 8]))
        return self._layer(tf.sin(inputs @ self._weights))


class ProjectedCritic(Projection):
    """A critic's hidden layers."""

    def __init__(self):
        super().__init__((4,), "torso")

    def __call__(self, features, action):
        return super().__call__(tf.concat([features, action], -1))


class DrawnProjection(Projection):
    """Draws new weights in every call, on purpose."""

    keep = staticmethod(lambda weights: None)

    def __call__(self, inputs):
        return self._layer(tf.sin(inputs @ tf.random.normal([inputs.shape[-1], 8])))


def projected_frames(dtype, name):
    """An encoder without variables."""
    weights = tf.random.normal([8 * 8 * 9, 8])
    return snt.Sequential([lambda x: snt.flatten(tf.cast(x, tf.float32)) @ weights], name)


def means(dtype, name):
    """An encoder of hand-made features, without variables."""
    return snt.Sequential([lambda x: snt.flatten(tf.reduce_mean(tf.cast(x, tf.float32), 1))], name)


def networks_of(agent):
    return agent.make_networks(lambda name: ScalarCritic(agent.make_critic_torso, name))


@pytest.mark.parametrize("part", ["policy", "critic", "encoder"])
def test_a_part_with_numbers_that_would_not_come_back(part):
    if part == "critic":
        agent = TD3(TD3Config(**SMALL), make_spec())
        agent.make_critic_torso = lambda: ProjectedCritic()
    else:
        setting = {"policy": ("torso", "Projection"), "encoder": ("encoder", "projected_frames")}
        agent = agent_with(*setting[part])
    message = "critic to compute the same each time .* other results; keep numbers that"
    with pytest.raises(ConfigError, match=message) as error:
        networks_of(agent)
    assert "\n" not in str(error.value)


def test_an_encoder_may_have_no_variables():
    online, target = networks_of(agent_with("encoder", "means"))
    assert online.encoder is target.encoder and online.encoder.variables == ()


def test_a_torso_that_draws_in_every_call():
    """Built again, it computes something else, as it does in every call."""
    networks_of(agent_with("torso", "DrawnProjection"))


class Plain(TD3):
    """Its policy returns actions, but not the inputs of its tanh."""

    def make_policy(self, name):
        return snt.Sequential([snt.Linear(2, name="layer"), tf.tanh], name=name)


def test_a_policy_that_a_learner_cannot_train():
    replicator = rr.make("single_device")
    message = "make_policy: expected a policy with preactivations and squash, got a Sequential; der"
    with pytest.raises(ConfigError, match=message), replicator.scope():
        Plain(TD3Config(**SMALL), make_spec()).make_module(replicator, 1)


class NoNoise(OffPolicyAgent):
    make_module = None


def test_a_config_without_the_settings_of_a_deterministic_policy():
    agent = NoNoise(OffPolicyConfig(), make_spec())
    message = "with agents.config.NoiseSettings, got OffPolicyConfig; .* of NoNoise"
    with pytest.raises(ConfigError, match=message):
        agent.make_acting_networks()
    with pytest.raises(ConfigError, match=message):
        agent.make_exploration(ExplorationContext(np.random.default_rng(0)))


class Alone(TD3):
    def make_exploration(self, context):
        return lambda action: action


class Far(TD3):
    def make_exploration(self, context):
        return lambda action: (action + 3.0, ())


def test_an_exploration_of_an_agents_own():
    def actions_of(kind):
        agent = kind(TD3Config(**SMALL), make_spec())
        context = ExplorationContext(np.random.default_rng(0))
        actor = agent.make_actor(Weights(agent), [None], [context])
        return actor.select_actions([np.zeros(3, np.float32)])

    np.testing.assert_array_equal(actions_of(Far), [[1.0, 1.0]])
    # An action of two dimensions would be taken for an action and extras.
    with pytest.raises(
        ConfigError, match="make_exploration of Alone: expected .* got ndarray; ret"
    ):
        actions_of(Alone)
