"""The learner's step from pixels: which loss trains which network, and what is refused.

tests/conformance/test_agents.py compares replicas with one device.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from acme import specs

import rl_replicator as rr
from agents.d4pg.agent import D4PG
from agents.d4pg.config import PixelD4PGConfig
from rl_replicator.errors import ConfigError
from tests.agents.fixed_samples import make_samples, make_spec

pytestmark = pytest.mark.usefixtures("plain_graphs")
SIZE, BATCH = 24, 8
SPEC = make_spec(specs.BoundedArray((SIZE, SIZE, 3), np.uint8, 0, 255))
SMALL = PixelD4PGConfig(
    discount=0.97,
    policy_layers=(16,),
    critic_layers=(16,),
    num_atoms=11,
    feature_size=8,
    max_shift=2,
    precision="float32",
)


def test_the_critic_trains_the_encoder_and_the_policy_does_not():
    random = np.random.default_rng(3)
    frames = random.integers(0, 256, (2, BATCH, 3, SIZE, SIZE, 3), dtype=np.uint8)
    samples = make_samples(BATCH)
    transition = samples.transition._replace(observation=frames[0], next_observation=frames[1])
    samples = tf.nest.map_structure(tf.constant, samples._replace(transition=transition))

    def moved(policy_rate, critic_rate):
        """How far the encoder and the policy move in a step."""
        rates = {"policy_learning_rate": policy_rate, "critic_learning_rate": critic_rate}
        agent = D4PG(dataclasses.replace(SMALL, **rates), SPEC)
        module = agent.make_module(rr.make("single_device"), total_steps=6)
        networks = (module.online.encoder, module.online.policy)
        before = [[v.numpy() for v in network.variables] for network in networks]
        targets = {v.ref() for v in module.target.encoder.trainable_variables}
        assert targets and not targets & {v.ref() for v in networks[0].trainable_variables}
        module.step_fn(samples)
        return [
            max(abs(v.numpy() - old).max() for v, old in zip(network.variables, olds, strict=True))
            for network, olds in zip(networks, before, strict=True)
        ]

    encoder, policy = moved(policy_rate=0.5, critic_rate=1e-12)
    assert encoder < 1e-9 and policy > 0.01
    assert moved(policy_rate=1e-12, critic_rate=0.01)[0] > 1e-3


def test_frames_too_small_for_the_encoder_are_refused():
    with pytest.raises(ConfigError, match="--frame.width: expected at least 36 .* got 24"):
        D4PG(dataclasses.replace(SMALL, encoder="nature"), SPEC)
