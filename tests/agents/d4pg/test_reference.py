"""The learner's step against D4PG in NumPy (`numpy_step.py`): every variable after every step."""

import dataclasses

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.d4pg.agent import CategoricalCritic
from agents.d4pg.config import D4PGConfig
from agents.d4pg.learner import D4PGLearner
from agents.d4pg.losses import categorical_td_loss
from agents.learning.targets import update_targets
from agents.learning.weights import copy_variables
from agents.networks import actor_critic
from agents.networks.actor_critic import ActorCritic, DeterministicPolicy
from agents.networks.encoders import IdentityEncoder
from agents.networks.mlp import CriticTorso
from agents.replay.config import ReplayConfig
from tests.agents.d4pg.numpy_step import NumpyD4PG, Settings
from tests.agents.fixed_samples import ACTION, OBSERVATION, make_samples
from tests.agents.learner_checks import RecordedSeeds, check_metrics, check_start

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_graphs")]

BATCH, STEPS, IMPORTANCE_STEPS = 8, 5, 3
FEATURES = 3
NETWORKS = ("encoder", "policy", "critic", "target_encoder", "target_policy", "target_critic")
CONFIG = D4PGConfig(
    policy_layers=(5, 4),
    critic_layers=(5, 4),
    num_atoms=7,
    value_min=-4.0,
    value_max=8.0,
    preactivation_penalty=0.1,
    policy_learning_rate=3e-3,
    critic_learning_rate=1e-2,
    target_update_period=2,
    target_update_rate=1.0,
    max_action_gradient_norm=0.5,
    max_gradient_norm=0.25,
    global_batch_size=BATCH,
    replay=ReplayConfig(
        priority_exponent=0.6, importance_exponent_start=0.3, importance_exponent_end=0.9
    ),
)
ATOMS = np.linspace(CONFIG.value_min, CONFIG.value_max, CONFIG.num_atoms, dtype=np.float32)


class Encoder(snt.Module):
    """One layer: [B, N] -> [B, F]."""

    def __init__(self, name):
        super().__init__(name=name)
        init = snt.initializers.RandomNormal()
        self.w = tf.Variable(init([OBSERVATION, FEATURES], tf.float32), name="w")
        self.b = tf.Variable(tf.zeros([FEATURES]), name="b")

    def __call__(self, observation):
        return tf.tanh(observation @ self.w + self.b)


def make_networks(prefix, make_encoder):
    """Three built networks."""
    networks = ActorCritic(
        make_encoder(f"{prefix}encoder"),
        DeterministicPolicy(CONFIG.policy_layers, ACTION, name=f"{prefix}policy"),
        CategoricalCritic(
            lambda: CriticTorso(CONFIG.critic_layers), np.zeros_like(ATOMS), f"{prefix}critic"
        ),
    )
    features = networks.encoder(tf.zeros([1, OBSERVATION]))
    networks.critic(features, networks.policy(features))
    return networks


def make_module(config, replicator, make_encoder, augment):
    """A learner before its first step."""
    with replicator.scope():
        online, target = make_networks("", make_encoder), make_networks("target_", make_encoder)
        update_targets(target, online, rate=1.0)
        return D4PGLearner(
            config,
            online=online,
            target=target,
            atoms=ATOMS,
            total_steps=IMPORTANCE_STEPS,
            augment=augment,
            replicator=replicator,
            critic_loss=categorical_td_loss,
        )


def draw_weights(module):
    """Draws the weights of all six networks independently, with standard deviation 0.5."""
    random = np.random.default_rng(11)
    for pair in zip(
        module.online.trainable_variables, module.target.trainable_variables, strict=True
    ):
        for variable in pair:
            variable.assign(random.normal(scale=0.5, size=variable.shape).astype(np.float32))


def weights_of(module):
    """Copies of all six networks' variables, by path."""
    networks = {
        **module.online._asdict(),
        **{f"target_{name}": network for name, network in module.target._asdict().items()},
    }
    return copy_variables(networks, NETWORKS)


def settings_of(config, free_preactivation):
    """The settings of the reference."""
    same = {field.name for field in dataclasses.fields(Settings)} & set(vars(config))
    return Settings(
        atoms=ATOMS.astype(np.float64),
        exponent_start=config.replay.importance_exponent_start,
        exponent_end=config.replay.importance_exponent_end,
        importance_steps=IMPORTANCE_STEPS,
        free_preactivation=free_preactivation,
        **{name: getattr(config, name) for name in same},
    )


CASES = {
    "copied targets": ("single_device", IdentityEncoder, 0.3, {}),
    "encoder, soft targets, two replicas": (
        "multi_device:2",
        Encoder,
        0.5,
        {"target_update_rate": 0.3, "max_action_gradient_norm": 0.1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_variable_is_that_of_the_reference_after_every_step(case, monkeypatch):
    replicator_name, make_encoder, free_preactivation, changes = CASES[case]
    # The inputs of tanh are small here; the limit must lie among them.
    monkeypatch.setattr(actor_critic, "FREE_PREACTIVATION", free_preactivation)
    config = dataclasses.replace(CONFIG, **changes)
    replicator = rr.make(replicator_name)
    seeds = RecordedSeeds()
    module = make_module(config, replicator, make_encoder, seeds)
    check_start(module)
    draw_weights(module)
    reference = NumpyD4PG(settings_of(config, free_preactivation), weights_of(module))
    samples = make_samples(STEPS * BATCH, min_reward=-3.0)

    def input_fn(context):
        size = context.per_replica_batch_size(BATCH)
        return tf.data.Dataset.from_tensor_slices(samples).batch(size, drop_remainder=True)

    step = replicator.replicate(module.step_fn, replicator.make_inputs(input_fn), 1)
    clipped = {"action": [], "critic": [], "policy": []}
    for number in range(STEPS):
        outputs = replicator.local_results(step())
        rows = slice(number * BATCH, (number + 1) * BATCH)
        before = reference.weights
        outcome = reference.step(
            samples.probabilities[rows],
            samples.table_size[rows],
            [x[rows] for x in samples.transition[:5]],
        )
        for path, array in weights_of(module).items():
            message = f"{path} after step {number + 1}"
            expected = reference.weights[path]
            np.testing.assert_allclose(array, expected, rtol=1e-4, atol=2e-5, err_msg=message)
            # Every step changes all of them: no two arrays agree only because nothing happened.
            if not path.startswith("target_"):
                assert np.abs(expected - before[path]).max() > 5e-4, message
        for output in outputs:
            check_metrics(output)
        keys = np.concatenate([np.ravel(output.keys) for output in outputs])
        priorities = np.concatenate([np.ravel(output.priorities) for output in outputs])
        order = np.argsort(keys)
        np.testing.assert_array_equal(keys[order], samples.keys[rows])
        np.testing.assert_allclose(priorities[order], outcome.priorities, rtol=2e-4, atol=1e-5)
        for name, expected in outcome.metrics.items():
            value = np.mean([output.metrics[name] for output in outputs])
            np.testing.assert_allclose(value, expected, rtol=1e-4, err_msg=name)
        clipped["action"] += (
            outcome.action_gradient_norms > config.max_action_gradient_norm
        ).tolist()
        clipped["critic"].append(outcome.gradient_norms[0] > config.max_gradient_norm)
        clipped["policy"].append(outcome.gradient_norms[1] > config.max_gradient_norm)
    seeds.check(STEPS, replicator.num_replicas)
    # Norms lie on both sides of each limit; otherwise, the limits would not be tested.
    assert set(clipped["action"]) == {True, False} == {*clipped["critic"], *clipped["policy"]}
