"""The learner's step against MR.Q in NumPy (`numpy_step.py`): every variable after every step."""

import dataclasses

import numpy as np
import pytest
from acme import specs

from agents.learning.weights import copy_variables
from agents.mrq.agent import MRQ
from agents.mrq.config import MRQConfig
from agents.replay.sequences import Sequence
from agents.replay.transitions import Sample
from environments.flat import MaskedArray
from tests.agents import actor_critic_reference as reference
from tests.agents import fixed_samples
from tests.agents.mrq.numpy_step import NumpyMRQ

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_graphs")]

BATCH, STEPS, LENGTH, NUM_ACTIONS, DISCOUNT = 8, 3, 3, 3, 0.9
CONFIG = MRQConfig(
    width=4,
    policy_layers=(5, 3),
    critic_layers=(3, 4),
    horizon=LENGTH - 1,
    n_step=2,
    num_bins=7,
    discount=DISCOUNT,
    encoder_learning_rate=1e-2,
    critic_learning_rate=1e-2,
    policy_learning_rate=2e-2,
    weight_decay=0.1,
    dynamics_weight=0.7,
    reward_weight=0.5,
    end_weight=2.0,
    target_update_period=2,
    target_noise_sigma=0.5,
    preactivation_penalty=0.1,
    temperature=2.0,
    global_batch_size=BATCH,
    replay=reference.REPLAY,
)
CASES = {
    "continuous": ("single_device", fixed_samples.make_spec(), 0, 0.8),
    "discrete with a mask, two replicas": (
        "multi_device:2",
        fixed_samples.make_spec(
            MaskedArray(fixed_samples.OBSERVATION + NUM_ACTIONS, NUM_ACTIONS),
            specs.DiscreteArray(NUM_ACTIONS, np.int32),
            specs.Array((), np.float32),
        ),
        NUM_ACTIONS,
        1.0,
    ),
}


def make_samples(count, num_actions):
    """Sequences of all lengths; some end by termination, some are cut off, some go on.

    What comes after an episode's last observation differs from it, as a stack of frames does.
    """
    random = np.random.default_rng(3)
    lengths = 1 + np.arange(count) % LENGTH
    step = np.arange(LENGTH)
    valid = (step < lengths[:, None]).astype(np.float32)
    is_end = (step == lengths[:, None] - 1) & (random.random(count) < 0.5)[:, None]
    observation = random.normal(size=(count, LENGTH, fixed_samples.OBSERVATION))
    action = random.uniform(-1, 1, (count, LENGTH, fixed_samples.ACTION)).astype(np.float32)
    if num_actions:
        mask = np.eye(num_actions)[random.integers(num_actions, size=(count, LENGTH))]
        mask = np.maximum(mask, random.integers(2, size=mask.shape))  # At least one is legal.
        observation = np.concatenate([observation, mask], -1)
        action = random.integers(num_actions, size=(count, LENGTH), dtype=np.int32)
    return Sample(
        keys=np.arange(count, dtype=np.uint64),
        probabilities=random.uniform(1e-3, 1e-2, count),
        table_size=random.integers(900, 1000, count),
        transition=Sequence(
            observation=observation.astype(np.float32),
            action=action,
            reward=(valid * random.normal(0, 3, valid.shape)).astype(np.float32),
            discount=np.where(is_end, 0, DISCOUNT * valid).astype(np.float32),
            valid=valid,
            extras=(),
        ),
    )


def weights_of(module):
    """Copies of all networks' variables, by path."""
    networks = {"model": module.model}
    for name in ("encoder", "pair_encoder", "policy", "critic"):
        networks[name] = getattr(module.online, name)
        networks[f"target_{name}"] = getattr(module.target, name)
    return copy_variables(networks, networks)


def draw_weights(variable, random):
    is_scale = variable.name.endswith("/scale:0")
    return random.normal(1.0 if is_scale else 0.0, 0.3 if is_scale else 0.7, variable.shape)


def is_due(path, number):
    return path.split("/")[0] in ("model", "policy", "critic") or number % 2 == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_every_variable_is_that_of_the_reference_after_every_step(case):
    replicator_name, spec, num_actions, max_norm = CASES[case]
    config = dataclasses.replace(CONFIG, max_gradient_norm=max_norm)
    trained = reference.check_training(
        replicator_name,
        MRQ(config, spec),
        lambda weights: NumpyMRQ(config, num_actions, num_actions, weights),
        is_due,
        rtol=1e-3,
        atol=2e-4,
        local_metrics=["critic_gradient_norm", "policy_gradient_norm"],
        read=weights_of,
        samples=make_samples(STEPS * BATCH, num_actions),
        draw_weights=draw_weights,
        least=3e-4,
    )
    # Norms and priorities lie on both sides of their limits; otherwise, these would not be tested.
    assert set(trained.clipped) == {True, False}
    assert 1.0 in trained.priorities and max(trained.priorities) > 1
