"""TD3's step against NumPy: every variable after every step, replicated and not."""

import numpy as np
import pytest
import tensorflow as tf
from acme import specs

import rl_replicator as rr
from agents.learning.variables import copy_variables
from agents.replay.config import ReplayConfig
from agents.td3 import TD3Config
from agents.td3.agent import TD3
from tests.agents import actor_critic_reference as reference
from tests.agents import fixed_samples

BATCH, STEPS = 8, 4
CONFIG = TD3Config(
    policy_layers=(5, 4),
    critic_layers=(5, 4),
    policy_learning_rate=3e-3,
    critic_learning_rate=1e-2,
    target_update_rate=0.3,
    policy_delay=2,
    target_noise_sigma=0.0,
    global_batch_size=BATCH,
    replay=ReplayConfig(priority_exponent=0.6, importance_exponent_start=0.3),
)
SPEC = fixed_samples.make_spec(rewards=specs.Array((), np.float32))


def weights_of(module):
    networks = {
        "policy": module.online.policy,
        "critic": module.online.critic,
        "target_policy": module.target.policy,
        "target_critic": module.target.critic,
    }
    return copy_variables(networks, networks)


class NumpyTD3:
    """Fujimoto et al. 2018 (arXiv:1802.09477), Algorithm 1, without target noise."""

    def __init__(self, weights):
        self.weights = {path: array.astype(np.float64) for path, array in weights.items()}
        self._policy_adam = reference.Adam(CONFIG.policy_learning_rate)
        self._critic_adam = reference.Adam(CONFIG.critic_learning_rate)
        self._steps = 0

    def step(self, probabilities, table_size, transition):
        """Trains on a global batch; returns the new priorities."""
        o, a, r, d, o_next = (np.asarray(x, np.float64) for x in transition)
        start = self.weights
        a_next = np.tanh(reference.mlp(start, "target_policy", o_next))
        target = r + d * reference.twin(start, "target_", o_next, a_next).min(-1)
        beta = 0.3 + 0.7 * min(1.0, self._steps / STEPS)
        importance = reference.importance(probabilities, table_size, beta)

        def critic_loss(weights):
            errors = target[:, None] - reference.twin(weights, "", o, a)
            return (importance * (0.5 * errors**2).sum(-1)).mean()

        def policy_loss(weights):
            action = np.tanh(reference.mlp(weights, "policy", o))
            return -reference.twin(start, "", o, action)[:, 0].mean()

        priorities = np.abs(target[:, None] - reference.twin(start, "", o, a)).max(-1)
        critic = reference.gradient(critic_loss, start, reference.names(start, "critic"))
        self._steps += 1
        self.weights = self._critic_adam.apply(start, critic)
        if self._steps % CONFIG.policy_delay == 0:
            policy = reference.gradient(policy_loss, start, reference.names(start, "policy"))
            self.weights = self._policy_adam.apply(self.weights, policy)
            self.weights = reference.update_targets(self.weights, CONFIG.target_update_rate)
        return priorities


@pytest.mark.timeout(300)
@pytest.mark.parametrize("replicator_name", ["single_device", "multi_device:2"])
def test_every_variable_is_that_of_the_reference_after_every_step(replicator_name):
    replicator = rr.make(replicator_name)
    with replicator.scope():
        module = TD3(CONFIG, SPEC).make_module(replicator, total_steps=STEPS)
    random = np.random.default_rng(11)
    for variable in (*module.online.trainable_variables, *module.target.trainable_variables):
        variable.assign(random.normal(scale=0.5, size=variable.shape).astype(np.float32))
    numpy_td3 = NumpyTD3(weights_of(module))
    samples = fixed_samples.make_samples(STEPS * BATCH, min_reward=-3.0)

    def input_fn(context):
        size = context.per_replica_batch_size(BATCH)
        return tf.data.Dataset.from_tensor_slices(samples).batch(size, drop_remainder=True)

    step = replicator.replicate(module.step_fn, replicator.make_inputs(input_fn), 1)
    for number in range(STEPS):
        outputs = replicator.local_results(step())
        rows = slice(number * BATCH, (number + 1) * BATCH)
        before = numpy_td3.weights
        expected = numpy_td3.step(
            samples.probabilities[rows],
            samples.table_size[rows],
            [x[rows] for x in samples.transition[:5]],
        )
        got = np.concatenate([np.ravel(output.priorities) for output in outputs])
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=1e-5)
        for path, array in weights_of(module).items():
            message = f"{path} after step {number + 1}"
            np.testing.assert_allclose(
                array, numpy_td3.weights[path], rtol=2e-4, atol=3e-5, err_msg=message
            )
            is_due = path.startswith("critic") or number % 2 == 1
            moved = np.abs(numpy_td3.weights[path] - before[path]).max()
            assert (moved > 5e-4) == is_due, message
