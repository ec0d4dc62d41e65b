"""Networks that follow others: variables that no loss trains are copied."""

import dataclasses

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.learning.targets import PolicyAverage, update_targets
from agents.td3.agent import TD3
from agents.td3.config import TD3Config
from tests.agents.fixed_samples import make_samples, make_spec


class RandomFeatures(snt.Module):
    """[B, N] -> [B, sizes[-1]]: sines of a fixed random projection, then a linear layer."""

    def __init__(self, sizes, name):
        super().__init__(name=name)
        self._num_features = sizes[0]
        self._linear = snt.Linear(sizes[-1], name="linear")

    @snt.once
    def _build(self, size):
        projection = tf.random.normal([size, self._num_features])
        self.projection = tf.Variable(projection, trainable=False, name="projection")

    def __call__(self, x):
        self._build(x.shape[-1])
        return self._linear(tf.sin(x @ self.projection))


class Idle(RandomFeatures):
    """The same with a trainable variable on which nothing depends."""

    def __init__(self, sizes, name):
        super().__init__(sizes, name)
        self.idle = tf.Variable([1.0], name="idle")


class Counting(snt.Module):
    """A weight, and an integer that no loss trains."""

    def __init__(self, weight, count):
        super().__init__()
        self.weight = tf.Variable(weight)
        self.count = tf.Variable(count, trainable=False)


def test_what_is_trained_moves_and_the_rest_is_copied():
    target, online, shared = Counting(1.0, 1), Counting(3.0, 7), Counting(5.0, 9)
    update_targets([target, shared], [online, shared], rate=0.25, is_due=tf.constant(False))
    assert (target.weight.numpy(), target.count.numpy()) == (1.0, 1)
    update_targets([target, shared], [online, shared], rate=0.25, is_due=tf.constant(True))
    assert (target.weight.numpy(), target.count.numpy()) == (1.5, 7)
    assert (online.weight.numpy(), online.count.numpy()) == (3.0, 7)
    assert (shared.weight.numpy(), shared.count.numpy()) == (5.0, 9)


def test_copies_start_with_the_random_features_of_the_network():
    agent = TD3(
        TD3Config(torso=f"{__name__}:RandomFeatures", policy_layers=(8, 4), critic_layers=(8, 4)),
        make_spec(),
    )
    replicator = rr.make("single_device")
    with replicator.scope():
        module = agent.make_module(replicator, 100)
        average = PolicyAverage(module, agent.make_acting_networks(), 20)
    names = [name for name in module.target._fields if name != "encoder"]
    copies = [(getattr(module.target, name), getattr(module.online, name)) for name in names]
    copies.append((average.acting_networks["average_policy"], module.online.policy))
    num_features = 0
    for copy, network in copies:
        for ours, theirs in zip(copy.variables, network.variables, strict=True):
            assert ours is not theirs
            np.testing.assert_array_equal(ours, theirs)
        num_features += sum(isinstance(part, RandomFeatures) for part in copy.submodules)
    assert num_features >= len(copies)


@pytest.mark.parametrize(("agent_class", "config"), [(D4PG, D4PGConfig()), (TD3, TD3Config())])
def test_a_variable_on_which_nothing_depends_stays_as_it_is(agent_class, config):
    torso = f"{__name__}:Idle"
    config = dataclasses.replace(config, torso=torso, policy_layers=(8, 4), critic_layers=(8, 4))
    replicator = rr.make("single_device")
    with replicator.scope():
        module = agent_class(config, make_spec()).make_module(replicator, 100)
    data = tf.data.Dataset.from_tensors(make_samples(4)).repeat()
    step = replicator.replicate(module.step_fn, replicator.make_inputs(lambda context: data))
    before = {v.name: v.numpy() for v in module.online.policy.trainable_variables}
    for _ in range(2):  # TD3 updates its policy in the second step.
        step()
    after = {v.name: v.numpy() for v in module.online.policy.trainable_variables}
    assert any("idle" in name for name in after)
    for name, new in after.items():
        assert np.array_equal(new, before[name]) == ("idle" in name), name
