"""TD3's step against NumPy: every variable after every step, replicated and not."""

import dataclasses

import numpy as np
import pytest
from acme import specs

from agents.learning.weights import copy_variables
from agents.networks import actor_critic
from agents.replay.config import ReplayConfig
from agents.td3 import TD3Config
from agents.td3.agent import TD3
from tests.agents import actor_critic_reference as reference
from tests.agents import fixed_samples

pytestmark = pytest.mark.usefixtures("plain_graphs")
FREE_PREACTIVATION = 0.3
CONFIG = TD3Config(
    policy_layers=(5, 4),
    critic_layers=(5, 4),
    preactivation_penalty=0.1,
    policy_learning_rate=3e-3,
    critic_learning_rate=1e-2,
    target_update_rate=0.3,
    policy_delay=2,
    target_noise_sigma=0.4,
    target_noise_clip=0.3,
    global_batch_size=reference.BATCH,
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
    """Fujimoto et al. 2018 (arXiv:1802.09477), Algorithm 1."""

    def __init__(self, weights):
        self.weights = {path: array.astype(np.float64) for path, array in weights.items()}
        self._policy_adam = reference.Adam(CONFIG.policy_learning_rate)
        self._critic_adam = reference.Adam(CONFIG.critic_learning_rate)
        self.steps = 0

    def step(self, probabilities, table_size, transition):
        """Trains on a global batch; returns the new priorities and the metrics."""
        o, a, r, d, o_next = (np.asarray(x, np.float64) for x in transition)
        start = self.weights
        a_next = np.tanh(reference.mlp(start, "target_policy", o_next))
        # The learner's own noise; some of it must lie on each side of the limit.
        drawn = self.draw(a_next.shape, 2).numpy()
        noise = np.clip(CONFIG.target_noise_sigma * drawn.astype(np.float64), -0.3, 0.3)
        assert {True, False} == set((np.abs(noise) < 0.3).ravel())
        a_next = np.clip(a_next + noise, -1.0, 1.0)
        target = r + d * reference.twin(start, "target_", o_next, a_next).min(-1)
        beta = 0.3 + 0.7 * min(1.0, self.steps / reference.TOTAL_STEPS)
        importance = reference.importance(probabilities, table_size, beta)

        def critic_loss(weights):
            errors = target[:, None] - reference.twin(weights, "", o, a)
            return (importance * (0.5 * errors**2).sum(-1)).mean()

        def policy_loss(weights):
            x = reference.mlp(weights, "policy", o)
            q = reference.twin(start, "", o, np.tanh(x))[:, 0]
            excess = np.maximum(np.abs(x) - FREE_PREACTIVATION, 0.0)
            assert {True, False} == set((excess > 0).ravel())
            return (CONFIG.preactivation_penalty / 2 * (excess**2).sum(-1) - q).mean()

        priorities = np.abs(target[:, None] - reference.twin(start, "", o, a)).max(-1)
        critic = reference.gradient(critic_loss, start, reference.names(start, "critic"))
        metrics = {
            "critic_loss": critic_loss(start),
            "q_mean": reference.twin(start, "", o, a).mean(),
            "critic_gradient_norm": reference.norm(critic),
            "policy_gradient_norm": 0.0,
        }
        self.steps += 1
        self.weights = self._critic_adam.apply(start, critic)
        if self.steps % CONFIG.policy_delay == 0:
            policy = reference.gradient(policy_loss, start, reference.names(start, "policy"))
            metrics["policy_gradient_norm"] = reference.norm(policy)
            self.weights = self._policy_adam.apply(self.weights, policy)
            self.weights = reference.update_targets(self.weights, CONFIG.target_update_rate)
        return priorities, metrics


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("replicator_name", "value_scale"), [("single_device", "none"), ("multi_device:2", "returns")]
)
def test_every_variable_is_that_of_the_reference_after_every_step(
    replicator_name, value_scale, monkeypatch
):
    # The inputs of tanh are small here; the limit must lie among them.
    monkeypatch.setattr(actor_critic, "FREE_PREACTIVATION", FREE_PREACTIVATION)

    def is_due(path, number):
        return path.startswith("critic") or number % CONFIG.policy_delay == CONFIG.policy_delay - 1

    agent = TD3(dataclasses.replace(CONFIG, value_scale=value_scale), SPEC)
    reference.check_training(
        replicator_name,
        agent,
        NumpyTD3,
        weights_of,
        is_due,
        local_metrics=["critic_gradient_norm"],
        rtol=2e-4,
        atol=3e-5,
    )
