"""Weights by path: missing and duplicate names are errors."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.learning.weights import WeightsPart, named_variables
from agents.td3.agent import TD3
from agents.td3.config import TD3Config
from rl_replicator.errors import ConfigError
from tests.agents.fixed_samples import make_spec


def test_only_the_named_networks_are_served(tmp_path):
    arrays = {"policy/mlp/w": np.ones(2), "policy/b": np.zeros(1), "encoder/w": np.ones(3)}
    WeightsPart(arrays).save(tmp_path)
    restored = WeightsPart()
    restored.restore(tmp_path)
    assert sorted(restored.get_variables(["policy"])) == ["policy/b", "policy/mlp/w"]
    assert restored.get_variables([]) == {}
    with pytest.raises(KeyError, match="expected names among .*encoder.*policy.* got .*critic"):
        restored.get_variables(["policy", "critic"])


def test_two_variables_of_one_name_are_refused():
    module = snt.Module(name="policy")
    module.a, module.b = tf.Variable(1.0, name="policy/w"), tf.Variable(2.0, name="policy/w")
    module.c = tf.Variable(3.0, name="policy/b")
    with pytest.raises(
        ConfigError, match="distinct variable names in policy, got several of policy/w; give each"
    ):
        named_variables("policy", module)


def test_layers_that_were_made_before_their_module():
    module = snt.Sequential([snt.Linear(2, name="hidden"), snt.Linear(1, name="head")], "policy")
    module(tf.zeros([1, 3]))
    shapes = {path: tuple(v.shape) for path, v in named_variables("policy", module).items()}
    assert shapes == {
        "policy/hidden/w": (3, 2),
        "policy/hidden/b": (2,),
        "policy/head/w": (2, 1),
        "policy/head/b": (1,),
    }


def keras_torso(layer_sizes, name):
    """Its layers have no names: Keras numbers them."""
    return tf.keras.Sequential([tf.keras.layers.Dense(size) for size in layer_sizes], name)


def named_keras_torso(layer_sizes, name):
    layers = [tf.keras.layers.Dense(size, name=f"l{i}") for i, size in enumerate(layer_sizes)]
    return tf.keras.Sequential(layers, name)


def make_module(torso):
    config = TD3Config(policy_layers=(4,), critic_layers=(4,), torso=f"{__name__}:{torso}")
    return TD3(config, make_spec()).make_module(rr.make("single_device"), 100)


def test_layers_whose_names_differ_between_processes_are_refused():
    with pytest.raises(
        ConfigError, match=r"in policy .* got policy/dense\w*/kernel and then .*; give each layer"
    ) as error:
        make_module("keras_torso")
    assert "\n" not in str(error.value)
    policy = make_module("named_keras_torso").acting_networks["policy"]
    layers = {path.rpartition("/")[0] for path in named_variables("policy", policy)}
    assert layers == {"policy/l0", "policy/head"}


def test_a_network_of_keras_has_paths():
    module = named_keras_torso([4], "encoder")
    module(tf.zeros([1, 3]))
    assert [*named_variables("encoder", module)] == ["encoder/l0/kernel", "encoder/l0/bias"]
