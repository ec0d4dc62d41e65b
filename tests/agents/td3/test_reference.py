"""TD3's step against NumPy: every variable after every step, replicated and not."""

import dataclasses

import numpy as np
import pytest

from agents.networks import actor_critic
from agents.td3 import TD3Config
from agents.td3.agent import TD3
from tests.agents import actor_critic_reference as reference

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
    replay=reference.REPLAY,
)


class NumpyTD3(reference.ActorCritic):
    """Fujimoto et al. 2018 (arXiv:1802.09477), Algorithm 1."""

    def step(self, probabilities, table_size, transition):
        """Trains on a global batch; returns the new priorities and the metrics."""
        o, a, r, d, o_next = (np.asarray(x, np.float64) for x in transition[:5])
        start = self.weights
        a_next = np.tanh(reference.mlp(start, "target_policy", o_next))
        # The learner's own noise; some of it must lie on each side of the limit.
        drawn = self.draw(a_next.shape, 2).numpy()
        noise = np.clip(CONFIG.target_noise_sigma * drawn.astype(np.float64), -0.3, 0.3)
        assert {True, False} == set((np.abs(noise) < 0.3).ravel())
        a_next = np.clip(a_next + noise, -1.0, 1.0)
        target = r + d * reference.twin(start, "target_", o_next, a_next).min(-1)
        importance = self.importance(probabilities, table_size)
        critic_loss, priorities = self.twin_loss(target, importance, o, a)

        def policy_loss(weights):
            x = reference.mlp(weights, "policy", o)
            q = reference.twin(start, "", o, np.tanh(x))[:, 0]
            excess = np.maximum(np.abs(x) - FREE_PREACTIVATION, 0.0)
            assert {True, False} == set((excess > 0).ravel())
            return (CONFIG.preactivation_penalty / 2 * (excess**2).sum(-1) - q).mean()

        self.steps += 1
        is_due = self.steps % CONFIG.policy_delay == 0
        losses = {"critic": critic_loss} | ({"policy": policy_loss} if is_due else {})
        gradients = self.gradients(losses)
        metrics = {
            "critic_loss": critic_loss(start),
            "q_mean": reference.twin(start, "", o, a).mean(),
            "critic_gradient_norm": reference.norm(gradients["critic"]),
            "policy_gradient_norm": reference.norm(gradients.get("policy", {})),
        }
        self.train(gradients)
        if is_due:
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

    reference.check_training(
        replicator_name,
        TD3(dataclasses.replace(CONFIG, value_scale=value_scale), reference.SPEC),
        lambda weights: NumpyTD3(
            weights, policy=CONFIG.policy_learning_rate, critic=CONFIG.critic_learning_rate
        ),
        is_due,
        rtol=2e-4,
        atol=3e-5,
        local_metrics=["critic_gradient_norm"],
    )
