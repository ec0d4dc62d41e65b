"""Weights by path: a name that is not there, or that two variables have, is an error."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from agents.learning.variables import named_variables
from agents.learning.weights import WeightsPart


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
    with pytest.raises(ValueError, match="expected distinct variable names in policy"):
        named_variables("policy", module)
