"""The torsos against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from agents.acting.acting_policy import ActingPolicy, LatestObservation, NumpyPolicy, compile_policy
from agents.learning.weights import copy_variables
from agents.networks.encoders import RunningNormalization
from agents.networks.mlp import CriticTorso, find_torso, residual_mlp
from rl_replicator.errors import ConfigError


def layer_norm(x, scale, offset):
    centred = x - x.mean(-1, keepdims=True)
    return scale * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) + offset


def test_residual_blocks_add_to_the_features():
    torso = residual_mlp([4, 6, 5], "torso")
    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    torso(x)
    random = np.random.default_rng(1)
    for variable in torso.variables:
        variable.assign(random.normal(scale=0.5, size=variable.shape))
    weights = {v.name.removeprefix("torso/").split(":")[0]: v.numpy() for v in torso.variables}
    expected = x @ weights["linear_0/w"] + weights["linear_0/b"]
    for block, hidden_size in (("block_0", 6), ("block_1", 5)):
        y = layer_norm(
            expected, weights[f"{block}/layer_norm/scale"], weights[f"{block}/layer_norm/offset"]
        )
        y = np.maximum(y @ weights[f"{block}/hidden/w"] + weights[f"{block}/hidden/b"], 0)
        assert y.shape == (7, hidden_size)
        expected = expected + y @ weights[f"{block}/output/w"] + weights[f"{block}/output/b"]
    expected = layer_norm(expected, weights["layer_norm/scale"], weights["layer_norm/offset"])
    np.testing.assert_allclose(torso(x), expected, rtol=1e-4, atol=1e-5)
    assert len(weights) == len(torso.variables)  # Actors match them by path.


def test_a_critic_takes_the_torso_that_is_named():
    torso = CriticTorso((4, 6), make_torso=find_torso("residual"))
    assert torso(tf.zeros([2, 3]), tf.zeros([2, 1])).shape == (2, 4)
    with pytest.raises(ConfigError, match=r"--agent\.torso: expected mlp, residual or .* 'mpl'"):
        find_torso("mpl")


def test_actors_compute_it_in_numpy():
    encoder, torso = RunningNormalization("encoder"), residual_mlp([4, 6], "policy")
    networks = {"encoder": encoder, "policy": torso}
    spec = tf.TensorSpec([3], tf.float32)
    x = np.random.default_rng(0).normal([5, -2, 1], [1, 9, 2], (4, 3)).astype(np.float32)
    torso(encoder(x))
    encoder.update(tf.constant(x))
    policy = ActingPolicy(networks, lambda o: torso(encoder(o)), spec, LatestObservation())
    act = compile_policy(policy, 4)
    assert isinstance(act, NumpyPolicy)
    act.load(copy_variables(networks, networks))
    np.testing.assert_allclose(act(x), torso(encoder(x)), rtol=1e-5, atol=1e-6)
