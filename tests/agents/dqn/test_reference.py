"""The learner's step against DQN in NumPy (`numpy_step.py`): every variable after every step."""

import dataclasses

import numpy as np
import pytest
from acme import specs

from agents.dqn.agent import DQN
from agents.dqn.config import DQNConfig
from agents.replay.config import ReplayConfig
from environments.flat import MaskedArray
from tests.agents import actor_critic_reference as reference
from tests.agents import fixed_samples
from tests.agents.dqn.numpy_step import NumpyDQN, Settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_graphs")]

NUM_ACTIONS = 2
STATE = specs.Array((fixed_samples.OBSERVATION,), np.float32)
MASKED = MaskedArray(fixed_samples.OBSERVATION, NUM_ACTIONS)
CONFIG = DQNConfig(
    critic_layers=(5, 4),
    critic_prior="uniform",
    num_atoms=7,
    value_min=-4.0,
    value_max=8.0,
    critic_learning_rate=1e-2,
    target_update_period=2,
    max_gradient_norm=0.3,
    global_batch_size=reference.BATCH,
    replay=ReplayConfig(
        priority_exponent=0.6, importance_exponent_start=0.3, importance_exponent_end=0.9
    ),
)
CASES = {
    "C51, double, duelling": ("single_device", False, {}),
    "the scale of returns, a mask, two replicas": (
        "multi_device:2",
        True,
        {"value_scale": "returns", "max_gradient_norm": 0.2},
    ),
    "plain DQN with a mask": (
        "single_device",
        True,
        {"critic_loss": "huber", "double_q": False, "duelling": False, "max_gradient_norm": 0.2},
    ),
}


def spec_of(observations):
    actions = specs.DiscreteArray(NUM_ACTIONS, np.int32)
    return fixed_samples.make_spec(observations, actions, specs.Array((), np.float32))


@pytest.mark.parametrize("case", CASES)
def test_every_variable_is_that_of_the_reference_after_every_step(case):
    replicator_name, is_masked, changes = CASES[case]
    config = dataclasses.replace(CONFIG, **changes)
    agent = DQN(config, spec_of(MASKED if is_masked else STATE))
    is_categorical = config.critic_loss == "categorical"
    settings = Settings(
        atoms=agent.value_range.atoms().astype(np.float64) if is_categorical else None,
        num_actions=NUM_ACTIONS,
        is_double=config.double_q,
        is_duelling=config.duelling,
        is_masked=is_masked,
        learning_rate=config.critic_learning_rate,
        target_update_period=config.target_update_period,
        max_gradient_norm=config.max_gradient_norm,
        exponent_start=config.replay.importance_exponent_start,
        exponent_end=config.replay.importance_exponent_end,
        importance_steps=reference.TOTAL_STEPS,
    )
    trained = reference.check_training(
        replicator_name,
        agent,
        lambda weights: NumpyDQN(settings, weights),
        lambda path, number: not path.startswith("target_") or number % 2 == 1,
        rtol=2e-4,
        atol=2e-5,
    )
    # Norms lie on both sides of the limit; otherwise, it would not be tested.
    assert set(trained.clipped_gradients) == {True, False}
