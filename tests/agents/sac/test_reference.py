"""SAC's step against NumPy: every variable after every step, replicated and not."""

import dataclasses

import numpy as np
import pytest
from acme import specs

from agents.learning.weights import copy_variables
from agents.replay.config import ReplayConfig
from agents.sac import SACConfig
from agents.sac.agent import SAC
from tests.agents import actor_critic_reference as reference
from tests.agents import fixed_samples
from tests.agents.fixed_samples import ACTION

pytestmark = pytest.mark.usefixtures("plain_graphs")
CONFIG = SACConfig(
    policy_layers=(5, 4),
    critic_layers=(5, 4),
    policy_learning_rate=3e-3,
    critic_learning_rate=1e-2,
    temperature_learning_rate=2e-2,
    initial_temperature=0.3,
    target_update_rate=0.3,
    global_batch_size=reference.BATCH,
    replay=ReplayConfig(priority_exponent=0.6, importance_exponent_start=0.3),
)
SPEC = fixed_samples.make_spec(rewards=specs.Array((), np.float32))


def weights_of(module):
    networks = {
        "policy": module.online.policy,
        "critic": module.online.critic,
        "target_critic": module.target.critic,
    }
    return copy_variables(networks, networks) | {
        "temperature/log": np.array([module.log_temperature.numpy()])
    }


class NumpySAC:
    """Haarnoja et al. 2018 (arXiv:1812.05905), Algorithm 1."""

    def __init__(self, weights):
        self.weights = {path: array.astype(np.float64) for path, array in weights.items()}
        self._adams = {
            "critic": reference.Adam(CONFIG.critic_learning_rate),
            "policy": reference.Adam(CONFIG.policy_learning_rate),
            "temperature": reference.Adam(CONFIG.temperature_learning_rate),
        }
        self.steps = 0
        np.testing.assert_allclose(np.exp(self.weights["temperature/log"]), 0.3, rtol=1e-6)

    def _act(self, weights, observation, stream):
        """An action of the policy and its log-probability, with the learner's own noise."""
        shape = (reference.BATCH, ACTION)
        noise = self.draw(shape, stream).numpy().astype(np.float64)
        torso = {path.replace("policy/torso", "policy"): x for path, x in weights.items()}
        heads = {}
        for head in ("mean", "log_stddev"):
            renamed = {
                path.replace(f"policy/{head}", "policy/head"): x for path, x in torso.items()
            }
            heads[head] = reference.mlp(renamed, "policy", observation)
        stddev = np.exp(heads["log_stddev"])
        u = heads["mean"] + stddev * noise
        log_prob = -0.5 * noise**2 - np.log(stddev) - 0.5 * np.log(2 * np.pi)
        return np.tanh(u), (log_prob - np.log(1 - np.tanh(u) ** 2)).sum(-1)

    def step(self, probabilities, table_size, transition):
        """Trains on a global batch; returns the new priorities and the metrics."""
        o, a, r, d, o_next = (np.asarray(x, np.float64) for x in transition)
        start = self.weights
        alpha = np.exp(start["temperature/log"])
        a_next, log_prob_next = self._act(start, o_next, stream=2)
        soft = reference.twin(start, "target_", o_next, a_next).min(-1) - alpha * log_prob_next
        target = r + d * soft
        beta = 0.3 + 0.7 * min(1.0, self.steps / reference.TOTAL_STEPS)
        importance = reference.importance(probabilities, table_size, beta)

        def critic_loss(weights):
            errors = target[:, None] - reference.twin(weights, "", o, a)
            return (importance * (0.5 * errors**2).sum(-1)).mean()

        def policy_loss(weights):
            action, log_prob = self._act(weights, o, stream=3)
            return (alpha * log_prob - reference.twin(start, "", o, action).min(-1)).mean()

        def temperature_loss(weights):
            log_prob = self._act(start, o, stream=3)[1]
            return -(np.exp(weights["temperature/log"]) * (log_prob - ACTION)).mean()

        losses = {"critic": critic_loss, "policy": policy_loss, "temperature": temperature_loss}
        priorities = np.abs(target[:, None] - reference.twin(start, "", o, a)).max(-1)
        gradients = {
            name: reference.gradient(loss, start, reference.names(start, name))
            for name, loss in losses.items()
        }
        metrics = {
            "critic_loss": critic_loss(start),
            "soft_q_mean": reference.twin(start, "", o, a).mean(),
            "entropy": -self._act(start, o, stream=3)[1].mean(),
            "temperature": alpha[0],
            "critic_gradient_norm": reference.norm(gradients["critic"]),
            "policy_gradient_norm": reference.norm(gradients["policy"]),
        }
        for name, adam in self._adams.items():
            self.weights = adam.apply(self.weights, gradients[name])
        self.steps += 1
        self.weights = reference.update_targets(self.weights, CONFIG.target_update_rate)
        return priorities, metrics


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("replicator_name", "value_scale"), [("single_device", "none"), ("multi_device:2", "returns")]
)
def test_every_variable_is_that_of_the_reference_after_every_step(replicator_name, value_scale):
    agent = SAC(dataclasses.replace(CONFIG, value_scale=value_scale), SPEC)
    reference.check_training(
        replicator_name,
        agent,
        NumpySAC,
        weights_of,
        lambda path, number: True,
        local_metrics=["critic_gradient_norm", "policy_gradient_norm"],
        rtol=5e-4,
        atol=1e-4,
    )
