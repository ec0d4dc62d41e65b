"""Transitions and weights that are the same every time, and the specs of small environments."""

import numpy as np
from acme import specs, types

from agents.learning.weights import copy_variables
from agents.replay.transitions import Sample

OBSERVATION, ACTION = 3, 2


def make_spec(
    observation=OBSERVATION, action=ACTION, rewards=specs.BoundedArray((), np.float32, 0.0, 1.0)
):
    """The spec of an environment with these observations and actions, or these numbers of them."""
    if isinstance(observation, int):
        observation = specs.Array((observation,), np.float32)
    if isinstance(action, int):
        action = specs.BoundedArray((action,), np.float32, -1.0, 1.0)
    discounts = specs.BoundedArray((), np.float32, 0.0, 1.0)
    return specs.EnvironmentSpec(observation, action, rewards, discounts)


class Weights:
    """Serves weights of an agent that do not change."""

    def __init__(self, agent):
        self._networks = agent.make_acting_networks()

    def get_variables(self, names):
        return copy_variables(self._networks, names)


def make_samples(count, min_reward=0.0, max_reward=5.0, extras=(), num_actions=None):
    """Makes a `Sample` [count, ...]; keys, probabilities and table sizes differ between rows.

    Actions are [count, ACTION] float32, or of `num_actions` discrete ones [count] int32.
    """
    random = np.random.default_rng(3)

    def actions():
        if num_actions is not None:
            return random.integers(num_actions, size=count, dtype=np.int32)
        return random.uniform(-1, 1, (count, ACTION)).astype(np.float32)

    return Sample(
        keys=np.arange(100, 100 + count, dtype=np.uint64),
        probabilities=random.uniform(1e-4, 1e-2, count),
        table_size=random.integers(900, 1000, count),
        transition=types.Transition(
            observation=random.normal(size=(count, OBSERVATION)).astype(np.float32),
            action=actions(),
            reward=random.uniform(min_reward, max_reward, count).astype(np.float32),
            discount=random.choice([0.0, 0.95], count).astype(np.float32),
            next_observation=random.normal(size=(count, OBSERVATION)).astype(np.float32),
            extras=extras,
        ),
    )
