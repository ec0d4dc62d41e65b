"""The learner's step from pixels: which loss trains which network, and what is refused.

tests/conformance/test_agents.py compares replicas with one device.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from acme import specs, types

import rl_replicator as rr
from agents.d4pg.agent import D4PG
from agents.d4pg.config import PixelD4PGConfig
from agents.replay.transitions import Sample
from rl_replicator.errors import ConfigError
from tests.agents.fixed_samples import make_spec

pytestmark = pytest.mark.usefixtures("plain_graphs")
SIZE, BATCH, STEPS = 24, 8, 6
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


def make_samples(count):
    random = np.random.default_rng(3)
    frames = random.integers(0, 256, (2, count, 3, SIZE, SIZE, 3), dtype=np.uint8)
    return Sample(
        keys=np.arange(count, dtype=np.uint64),
        probabilities=np.full(count, 1e-3),
        table_size=np.full(count, 1000, np.int64),
        transition=types.Transition(
            observation=frames[0],
            action=random.uniform(-1, 1, (count, 2)).astype(np.float32),
            reward=random.uniform(0, 5, count).astype(np.float32),
            discount=random.choice([0.0, 0.95], count).astype(np.float32),
            next_observation=frames[1],
        ),
    )


def make_module(config, replicator):
    tf.random.set_seed(5)
    with replicator.scope():
        return D4PG(config, SPEC).make_module(replicator, total_steps=STEPS)


def test_the_critic_trains_the_encoder_and_the_policy_does_not():
    def encoder_after(policy_rate, critic_rate):
        config = dataclasses.replace(
            SMALL, policy_learning_rate=policy_rate, critic_learning_rate=critic_rate
        )
        module = make_module(config, rr.make("single_device"))
        before = [variable.numpy() for variable in module.online.encoder.variables]
        policy_before = [variable.numpy() for variable in module.online.policy.variables]
        module.step_fn(tf.nest.map_structure(tf.constant, make_samples(BATCH)))
        moved = [
            abs(v.numpy() - b).max()
            for v, b in zip(module.online.encoder.variables, before, strict=True)
        ]
        pairs = zip(module.online.policy.variables, policy_before, strict=True)
        return max(moved), max(abs(v.numpy() - b).max() for v, b in pairs)

    encoder, policy = encoder_after(policy_rate=0.5, critic_rate=1e-12)
    assert encoder < 1e-9 and policy > 0.01
    encoder, _ = encoder_after(policy_rate=1e-12, critic_rate=0.01)
    assert encoder > 1e-3


def test_frames_too_small_for_the_encoder_are_refused():
    with pytest.raises(ConfigError, match="--frame.width: expected at least 36 .* got 24"):
        D4PG(dataclasses.replace(SMALL, encoder="nature"), SPEC)
