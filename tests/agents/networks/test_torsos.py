"""The torsos against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from agents.acting.acting_policy import ActingPolicy, LatestObservation, NumpyPolicy, compile_policy
from agents.learning.weights import copy_variables
from agents.networks.actor_critic import DeterministicPolicy, ScalarCritic
from agents.networks.encoders import RunningNormalization
from agents.networks.torsos import (
    BatchNormMlp,
    CriticTorso,
    Statistics,
    batch_norm,
    find_torso,
    joint_values,
    simba,
    to_unit_length,
)
from rl_replicator.errors import ConfigError
from tests.agents.actor_critic_reference import batches

RANDOM = np.random.default_rng(0)


def layer_norm(x, scale, offset):
    centred = x - x.mean(-1, keepdims=True)
    return scale * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) + offset


def randomize(module):
    """Draws all trainable variables."""
    for variable in module.trainable_variables:
        variable.assign(RANDOM.normal(scale=0.5, size=variable.shape))


def test_residual_blocks_add_to_the_features():
    torso = simba([4, 4], "torso")
    x = RANDOM.normal(size=(7, 3)).astype(np.float32)
    torso(x)
    randomize(torso)
    weights = {v.name.removeprefix("torso/").split(":")[0]: v.numpy() for v in torso.variables}
    expected = x @ weights["linear_0/w"] + weights["linear_0/b"]
    for block in ("block_0", "block_1"):
        y = layer_norm(
            expected, weights[f"{block}/layer_norm/scale"], weights[f"{block}/layer_norm/offset"]
        )
        y = np.maximum(y @ weights[f"{block}/hidden/w"] + weights[f"{block}/hidden/b"], 0)
        assert y.shape == (7, 16)
        expected = expected + y @ weights[f"{block}/output/w"] + weights[f"{block}/output/b"]
    expected = layer_norm(expected, weights["layer_norm/scale"], weights["layer_norm/offset"])
    np.testing.assert_allclose(torso(x), expected, rtol=1e-4, atol=1e-5)
    assert len(weights) == len(torso.variables)  # Actors match them by path.


@pytest.mark.parametrize("feature_size", [None, 5])
def test_a_critic_takes_the_torso_that_is_named(feature_size):
    critic = CriticTorso((4, 4), feature_size, find_torso("simba"))
    assert critic(tf.zeros([2, 3]), tf.zeros([2, 1])).shape == (2, 4)
    names = [variable.name for variable in critic.variables]
    assert sum("block_1/" in name for name in names) == 6  # The second block of two, whole.
    assert any(v.shape == (6, 4) for v in critic.variables) == (feature_size is not None)
    assert len({*names}) == len(names)  # Weights are copied by name.
    with pytest.raises(ConfigError, match=r"--agent\.torso: expected mlp, simba, xqc or .* 'mpl'"):
        find_torso("mpl")


@pytest.mark.parametrize("name", ["simba", "xqc"])
def test_actors_compute_it_in_numpy(name):
    encoder, torso = RunningNormalization("encoder"), find_torso(name)([4], "policy")
    networks = {"encoder": encoder, "policy": torso}
    spec = tf.TensorSpec([3], tf.float32)
    x = np.random.default_rng(0).normal([5, -2, 1], [1, 9, 2], (4, 3)).astype(np.float32)
    before = torso(encoder(x))
    encoder.update(tf.constant(x))
    with batch_norm(Statistics.TRAINING):
        torso(encoder(x))
    policy = ActingPolicy(networks, lambda o: torso(encoder(o)), spec, LatestObservation())
    act = compile_policy(policy, 4)
    assert isinstance(act, NumpyPolicy)
    act.load(copy_variables(networks, networks))
    np.testing.assert_allclose(act(x), torso(encoder(x)), rtol=1e-4, atol=1e-5)
    assert np.abs(act(x) - before).max() > 1e-2


def normalized(x, weights, name):
    """Batch norm of [B, N] in NumPy, by the batch."""
    x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)
    return x * weights[f"{name}/scale"] + weights[f"{name}/offset"]  # Of the inputs 0.


def critic_values(weights, x):
    """A critic with the torso xqc of two layers: [B, N] -> [B]."""
    x = normalized(x, weights, "critic/mlp/norm_0")
    for index in (0, 1):
        x = x @ weights[f"critic/mlp/linear_{index}/w"]
        x = np.maximum(normalized(x, weights, f"critic/mlp/norm_{index + 1}"), 0)
    return (x @ weights["critic/head/w"] + weights["critic/head/b"])[:, 0]


@pytest.mark.parametrize("replicator_name", ["single_device", "multi_device:2"])
def test_batch_norm_sees_both_batches_of_all_replicas_together(replicator_name):
    replicator = rr.make(replicator_name)
    shapes = {"s": (8, 3), "a": (8, 2), "s_next": (8, 3), "a_next": (8, 2)}
    batch = {name: RANDOM.normal(1, 2, shape).astype(np.float32) for name, shape in shapes.items()}
    with replicator.scope():
        online, target = (
            ScalarCritic(lambda: CriticTorso((5, 4), make_torso=BatchNormMlp)) for _ in range(2)
        )
        for critic in (online, target):
            critic(batch["s"], batch["a"])
            randomize(critic)

    def step_fn(batch):
        first, second = (batch["s"], batch["a"]), (batch["s_next"], batch["a_next"])
        return joint_values(online, target, first, second)

    step = replicator.replicate(step_fn, replicator.make_inputs(batches(batch, 8)), 1)
    found = [np.concatenate(x, -1)[0] for x in zip(*replicator.local_results(step()), strict=True)]
    parts = [batch["s"], batch["a"], batch["s_next"], batch["a_next"]]
    inputs = np.concatenate([np.hstack(parts[:2]), np.hstack(parts[2:])]).astype(np.float64)
    for critic, values, rows in ((online, found[0], slice(0, 8)), (target, found[1], slice(8, 16))):
        weights = {
            path.replace("/torso/", "/"): array
            for path, array in copy_variables({"critic": critic}, ["critic"]).items()
        }
        expected = critic_values(weights, inputs)[rows]
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-4)
        share = 0.01 if critic is online else 0.0  # Of the batch in the moving averages.
        mean, variance = (
            weights[f"critic/mlp/{which}_0/average"][0] for which in ("mean", "variance")
        )
        np.testing.assert_allclose(mean, share * inputs.mean(0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(variance, 1 - share + share * inputs.var(0), rtol=1e-4)


def test_weights_of_xqc_have_unit_length_for_each_unit():
    for name, is_unit in (("xqc", True), ("simba", False)):
        policy = DeterministicPolicy((6, 6), 2, make_torso=find_torso(name))
        policy(tf.zeros([1, 3]))
        randomize(policy)
        before = {v.name: v.numpy() for v in policy.trainable_variables}
        to_unit_length(policy)
        for variable in policy.trainable_variables:
            expected = before[variable.name]
            if is_unit and expected.ndim == 2:
                expected = expected / np.sqrt((expected**2).sum(0))
            np.testing.assert_allclose(variable, expected, rtol=1e-5, err_msg=variable.name)
