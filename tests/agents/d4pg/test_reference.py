"""The learner's step against D4PG in NumPy (`numpy_step.py`): every variable after every step."""

import dataclasses

import pytest
import sonnet as snt
import tensorflow as tf

from agents.d4pg import D4PGConfig
from agents.d4pg.agent import D4PG
from agents.networks import actor_critic
from agents.networks.encoders import IdentityEncoder
from tests.agents import actor_critic_reference as reference
from tests.agents import fixed_samples
from tests.agents.d4pg.numpy_step import NumpyD4PG

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_graphs")]

FEATURES = 3
CONFIG = D4PGConfig(
    policy_layers=(5, 4),
    critic_layers=(5, 4),
    critic_prior="uniform",
    num_atoms=7,
    value_min=-4.0,
    value_max=8.0,
    preactivation_penalty=0.1,
    policy_learning_rate=3e-3,
    critic_learning_rate=1e-2,
    target_update_period=2,
    target_update_rate=1.0,
    max_action_gradient_norm=0.05,
    max_gradient_norm=0.25,
    global_batch_size=reference.BATCH,
    replay=reference.REPLAY,
)


class Encoder(snt.Module):
    """One layer: [B, N] -> [B, F]."""

    def __init__(self, name):
        super().__init__(name=name)
        init = snt.initializers.RandomNormal()
        self.w = tf.Variable(init([fixed_samples.OBSERVATION, FEATURES], tf.float32), name="w")
        self.b = tf.Variable(tf.zeros([FEATURES]), name="b")

    def __call__(self, observation):
        return tf.tanh(observation @ self.w + self.b)


CASES = {
    "copied targets": ("single_device", IdentityEncoder, 0.3, {}),
    "a pair, the scale of returns, encoder, soft targets, two replicas": (
        "multi_device:2",
        Encoder,
        0.4,
        {
            "num_critics": 2,
            "value_scale": "returns",
            "weight_decay": 0.3,
            "target_update_rate": 0.3,
            "max_action_gradient_norm": 0.035,
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_variable_is_that_of_the_reference_after_every_step(case, monkeypatch):
    replicator_name, make_encoder, free_preactivation, changes = CASES[case]
    # The inputs of tanh are small here; the limit must lie among them.
    monkeypatch.setattr(actor_critic, "FREE_PREACTIVATION", free_preactivation)
    config = dataclasses.replace(CONFIG, **changes)
    agent = D4PG(config, reference.SPEC)
    agent.observations.make_encoder = make_encoder
    atoms = agent.value_range.atoms()
    trained = reference.check_training(
        replicator_name,
        agent,
        lambda weights: NumpyD4PG(config, atoms, free_preactivation, weights),
        lambda path, number: not path.startswith("target_") or number % 2 == 1,
        rtol=2e-4,
        atol=2e-5,
    )
    # Norms lie on both sides of each limit; otherwise, the limits would not be tested.
    assert set(trained.clipped_actions) == {True, False} == set(trained.clipped)
