"""The learner's step against MR.Q in NumPy (`numpy_step.py`): every variable after every step."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from acme import specs

import rl_replicator as rr
from agents.learning.weights import copy_variables
from agents.mrq.agent import MRQ
from agents.mrq.config import MRQConfig
from agents.replay.config import ReplayConfig
from agents.replay.sequences import Sequence
from agents.replay.transitions import Sample
from environments.flat import MaskedArray
from tests.agents import fixed_samples
from tests.agents.actor_critic_reference import batches
from tests.agents.learner_checks import check_metrics
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
    replay=ReplayConfig(
        priority_exponent=0.4, importance_exponent_start=0.3, importance_exponent_end=0.9
    ),
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


def check_start(module):
    """Asserts that all networks start equal, and that slots exist for what is trained."""
    weights = weights_of(module)
    for path, array in weights.items():
        source = path.removeprefix("target_").removeprefix("model/model_")
        if source in weights:
            np.testing.assert_array_equal(array, weights[source], err_msg=path)
    online = (module.model, module.online.policy, module.online.critic)
    wrapped = [getattr(value, "optimizer", None) for value in vars(module).values()]
    slots = sum(len(getattr(optimizer, "m", ())) for optimizer in wrapped)
    assert slots == sum(len(network.trainable_variables) for network in online)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_every_variable_is_that_of_the_reference_after_every_step(case):
    replicator_name, spec, num_actions, max_norm = CASES[case]
    config = dataclasses.replace(CONFIG, max_gradient_norm=max_norm)
    tf.random.set_seed(1)
    replicator = rr.make(replicator_name)
    with replicator.scope():
        module = MRQ(config, spec).make_module(replicator, total_steps=3)
    check_start(module)
    random = np.random.default_rng(11)
    for variable in module.trainable_variables:  # So large that actions and values differ.
        is_scale = variable.name.endswith("/scale:0")
        value = random.normal(1.0 if is_scale else 0.0, 0.3 if is_scale else 0.7, variable.shape)
        variable.assign(value.astype(np.float32))
    reference = NumpyMRQ(config, num_actions, num_actions, weights_of(module))
    reference.draw = lambda shape, stream: tf.random.stateless_normal(
        shape, module.step_seed(reference.steps, stream)
    )
    samples = make_samples(STEPS * BATCH, num_actions)

    step = replicator.replicate(module.step_fn, replicator.make_inputs(batches(samples)), 1)
    seen = []
    for number in range(STEPS):
        outputs = replicator.local_results(step())
        batch = tf.nest.map_structure(lambda x, n=number: x[n * BATCH :][:BATCH], samples)
        before = reference.weights
        priorities, metrics = reference.step(*batch[1:])
        got = np.concatenate([np.ravel(output.priorities) for output in outputs])
        np.testing.assert_allclose(got, priorities, rtol=1e-3, atol=1e-4)
        seen.extend(priorities)
        for output in outputs:
            check_metrics(output)
        for name, value in metrics.items():
            if len(outputs) == 1 or not name.endswith("norm"):  # Replicas have their own norms.
                mean = np.mean([output.metrics[name] for output in outputs])
                np.testing.assert_allclose(mean, value, rtol=1e-3, atol=1e-4, err_msg=name)
        for path, array in weights_of(module).items():
            new, message = reference.weights[path], f"{path} after step {number + 1}"
            np.testing.assert_allclose(array, new, rtol=1e-3, atol=2e-4, err_msg=message)
            trained = path.split("/")[0] in ("model", "policy", "critic")
            assert (np.abs(new - before[path]).max() > 3e-4) == (trained or number % 2 == 0), (
                message
            )
    # Norms and priorities lie on both sides of their limits; otherwise, these would not be tested.
    assert set(reference.clipped) == {True, False}
    assert 1.0 in seen and max(seen) > 1
