"""CRR's step against NumPy: every variable after every step, replicated and not."""

import dataclasses
import math

import numpy as np
import pytest

from agents.crr import CRRConfig
from agents.crr.agent import CRR
from tests.agents import actor_critic_reference as reference
from tests.agents import fixed_samples
from tests.agents.d4pg import numpy_step

pytestmark = pytest.mark.usefixtures("plain_graphs")
CONFIG = CRRConfig(
    policy_layers=(5,),
    critic_layers=(5,),
    critic_prior="uniform",
    num_atoms=7,
    value_min=-4.0,
    value_max=8.0,
    num_components=2,
    num_samples=3,
    policy_learning_rate=2e-2,
    critic_learning_rate=1e-2,
    target_update_period=1,
    target_update_rate=0.3,
    max_gradient_norm=None,
    global_batch_size=reference.BATCH,
    replay=reference.REPLAY,
)


def log_probabilities(weights, prefix, observation, action):
    """Those of the only critic, [B, Z]."""
    return numpy_step.log_probabilities(weights, prefix, observation, action)[0]


class NumpyCRR(reference.ActorCritic):
    """Wang et al. 2020 (arXiv:2006.15134), Algorithm 1, on the critic of D4PG."""

    def __init__(self, config, atoms, weights):
        super().__init__(
            weights, critic=config.critic_learning_rate, policy=config.policy_learning_rate
        )
        self.config, self.atoms = config, atoms.astype(np.float64)
        self.action_weights = []

    def _mixture(self, weights, prefix, observation):
        """Weights [B, M], means and standard deviations [B, M, A] of the components."""
        logits, mean, stddev = (
            reference.mlp(weights, f"{prefix}policy", observation, head)
            for head in ("logits", "mean", "stddev")
        )
        shape = (len(observation), self.config.num_components, fixed_samples.ACTION)
        stddev = 0.01 + np.log1p(np.exp(stddev))
        probabilities = np.exp(reference.log_softmax(logits))
        return probabilities, np.tanh(mean).reshape(shape), stddev.reshape(shape)

    def _sample(self, mixture, stream):
        """Actions [B, A], drawn with the learner's own noise."""
        shape = (reference.BATCH, 1 + fixed_samples.ACTION)
        noise = self.draw(shape, stream).numpy().astype(np.float64)
        actions = []
        for row, (probabilities, mean, stddev) in enumerate(zip(*mixture, strict=True)):
            share = (1 + math.erf(noise[row, 0] / math.sqrt(2))) / 2
            component = int(np.searchsorted(np.cumsum(probabilities), share))
            actions.append(mean[component] + stddev[component] * noise[row, 1:])
        return np.clip(actions, -1, 1)

    def _values(self, observation, action):
        return np.exp(log_probabilities(self.weights, "", observation, action)) @ self.atoms

    def _action_weights(self, observation, action):
        mixture, config = self._mixture(self.weights, "", observation), self.config
        values = [
            self._values(observation, self._sample(mixture, 3 + j))
            for j in range(config.num_samples)
        ]
        other = np.mean(values, 0) if config.advantage == "mean" else np.max(values, 0)
        advantage = self._values(observation, action) - other
        if config.weighting == "binary":
            return np.where(advantage > 0, 1.0, 0.0)
        return np.minimum(np.exp(advantage / config.beta), config.max_weight)

    def step(self, probabilities, table_size, transition):
        """Trains on a global batch; returns the new priorities and the metrics."""
        o, a, r, d, o_next = (np.asarray(x, np.float64) for x in transition[:5])
        a_next = self._sample(self._mixture(self.weights, "target_", o_next), stream=2)
        bootstrap = np.exp(log_probabilities(self.weights, "target_", o_next, a_next))
        target = reference.project(r, d, bootstrap, self.atoms)
        importance = self.importance(probabilities, table_size)
        action_weights = self._action_weights(o, a)
        self.action_weights.append(action_weights)

        def cross_entropy(weights):
            return -(target * log_probabilities(weights, "", o, a)).sum(-1)

        def policy_loss(weights):
            of_components, mean, stddev = self._mixture(weights, "", o)
            density = np.exp(-(((a[:, None] - mean) / stddev) ** 2) / 2) / stddev
            density = density.prod(-1) / (2 * np.pi) ** (fixed_samples.ACTION / 2)
            return -(action_weights * np.log((of_components * density).sum(-1))).mean()

        losses = {
            "critic": lambda weights: (importance * cross_entropy(weights)).mean(),
            "policy": policy_loss,
        }
        entropy = -(target * np.log(np.where(target > 0, target, 1))).sum(-1)
        priorities = np.maximum(cross_entropy(self.weights) - entropy, 0)
        gradients = self.gradients(losses)
        metrics = {
            "critic_loss": losses["critic"](self.weights),
            "policy_loss": policy_loss(self.weights),
            "action_weight": action_weights.mean(),
            "policy_gradient_norm": reference.norm(gradients["policy"]),
        }
        self.train(gradients)
        self.steps += 1
        self.weights = reference.update_targets(self.weights, self.config.target_update_rate)
        return priorities, metrics


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("replicator_name", "weighting", "advantage"),
    [("single_device", "exp", "mean"), ("multi_device:2", "binary", "max")],
)
def test_every_variable_is_that_of_the_reference_after_every_step(
    replicator_name, weighting, advantage
):
    config = dataclasses.replace(CONFIG, weighting=weighting, advantage=advantage, max_weight=1.2)
    agent = CRR(config, reference.SPEC)
    trained = reference.check_training(
        replicator_name,
        agent,
        lambda weights: NumpyCRR(config, agent.value_range.atoms(), weights),
        lambda path, number: True,
        rtol=5e-4,
        atol=1e-4,
        local_metrics=["policy_gradient_norm"],
    )
    # Weights lie on both sides of the limit; otherwise, it would not be tested.
    weights = np.concatenate(trained.action_weights)
    assert len(np.unique(weights)) > 1 and weights.max() == {"exp": 1.2, "binary": 1.0}[weighting]
