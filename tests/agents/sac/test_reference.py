"""SAC's step against NumPy: every variable after every step, replicated and not."""

import dataclasses

import numpy as np
import pytest

from agents.sac import SACConfig
from agents.sac.agent import SAC
from tests.agents import actor_critic_reference as reference
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
    replay=reference.REPLAY,
)


def weights_of(module):
    """With the logarithm of the temperature."""
    log_temperature = np.array([module.log_temperature.numpy()])
    return reference.weights_of(module) | {"temperature/log": log_temperature}


class NumpySAC(reference.ActorCritic):
    """Haarnoja et al. 2018 (arXiv:1812.05905), Algorithm 1."""

    def __init__(self, weights):
        networks = ("critic", "policy", "temperature")
        super().__init__(weights, **{n: getattr(CONFIG, f"{n}_learning_rate") for n in networks})
        np.testing.assert_allclose(np.exp(self.weights["temperature/log"]), 0.3, rtol=1e-6)

    def _act(self, weights, observation, stream):
        """An action of the policy and its log-probability, with the learner's own noise."""
        shape = (reference.BATCH, ACTION)
        noise = self.draw(shape, stream).numpy().astype(np.float64)
        stddev = np.exp(reference.mlp(weights, "policy", observation, "log_stddev"))
        u = reference.mlp(weights, "policy", observation, "mean") + stddev * noise
        log_prob = -0.5 * noise**2 - np.log(stddev) - 0.5 * np.log(2 * np.pi)
        return np.tanh(u), (log_prob - np.log(1 - np.tanh(u) ** 2)).sum(-1)

    def step(self, probabilities, table_size, transition):
        """Trains on a global batch; returns the new priorities and the metrics."""
        o, a, r, d, o_next = (np.asarray(x, np.float64) for x in transition[:5])
        start = self.weights
        alpha = np.exp(start["temperature/log"])
        a_next, log_prob_next = self._act(start, o_next, stream=2)
        soft = reference.twin(start, "target_", o_next, a_next).min(-1) - alpha * log_prob_next
        importance = self.importance(probabilities, table_size)
        critic_loss, priorities = self.twin_loss(r + d * soft, importance, o, a)

        def policy_loss(weights):
            action, log_prob = self._act(weights, o, stream=3)
            return (alpha * log_prob - reference.twin(start, "", o, action).min(-1)).mean()

        def temperature_loss(weights):
            log_prob = self._act(start, o, stream=3)[1]
            return -(np.exp(weights["temperature/log"]) * (log_prob - ACTION)).mean()

        losses = {"critic": critic_loss, "policy": policy_loss, "temperature": temperature_loss}
        gradients = self.gradients(losses)
        metrics = {
            "critic_loss": critic_loss(start),
            "soft_q_mean": reference.twin(start, "", o, a).mean(),
            "entropy": -self._act(start, o, stream=3)[1].mean(),
            "temperature": alpha[0],
            "critic_gradient_norm": reference.norm(gradients["critic"]),
            "policy_gradient_norm": reference.norm(gradients["policy"]),
        }
        self.train(gradients)
        self.steps += 1
        self.weights = reference.update_targets(self.weights, CONFIG.target_update_rate)
        return priorities, metrics


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("replicator_name", "value_scale"), [("single_device", "none"), ("multi_device:2", "returns")]
)
def test_every_variable_is_that_of_the_reference_after_every_step(replicator_name, value_scale):
    reference.check_training(
        replicator_name,
        SAC(dataclasses.replace(CONFIG, value_scale=value_scale), reference.SPEC),
        NumpySAC,
        lambda path, number: True,
        rtol=5e-4,
        atol=1e-4,
        local_metrics=["critic_gradient_norm", "policy_gradient_norm"],
        read=weights_of,
    )
