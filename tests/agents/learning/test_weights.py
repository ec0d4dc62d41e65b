"""Weights by path: a name that is not there, or that two variables have, is an error."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from agents.learning.variables import named_variables
from agents.learning.weights import WeightsPart
from rl_replicator.errors import ConfigError


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
