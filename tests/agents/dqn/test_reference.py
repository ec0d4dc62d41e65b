"""The learner's step against DQN in NumPy: every variable after every step."""

import dataclasses

import numpy as np
import pytest
from acme import specs

from agents.dqn.agent import DQN
from agents.dqn.config import DQNConfig
from environments.flat import MaskedArray
from tests.agents import actor_critic_reference as reference
from tests.agents import fixed_samples

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
    replay=reference.REPLAY,
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


class NumpyDQN(reference.ActorCritic):
    """Bellemare et al. 2017 (arXiv:1707.06887), Algorithm 1; van Hasselt et al. 2016, equation 4

    (arXiv:1509.06461); Wang et al. 2016 (arXiv:1511.06581), equation 9.
    """

    def __init__(self, config, atoms, is_masked, weights):
        super().__init__(weights, policy=config.critic_learning_rate)
        self._config, self._atoms, self._is_masked = config, atoms, is_masked

    def _outputs(self, weights, prefix, observation):
        """[B, N] -> [B, A, Z], without the mask at the end of an observation."""
        name = f"{prefix}policy"
        features = observation[:, :-NUM_ACTIONS] if self._is_masked else observation
        if not self._config.duelling:
            return reference.mlp(weights, name, features).reshape(len(features), NUM_ACTIONS, -1)
        # `mlp` ends with a linear head: here, the identity.
        head = np.eye(len(weights[f"{name}/linear_0/b"]))
        identity = {f"{name}/head/w": head, f"{name}/head/b": np.zeros(len(head))}
        shared = reference.mlp(weights | identity, name, features)
        value = reference.mlp(weights, f"{name}/value", shared)[:, None]
        advantage = reference.mlp(weights, f"{name}/advantage", shared)
        advantage = advantage.reshape(len(features), NUM_ACTIONS, -1)
        return value + advantage - advantage.mean(1, keepdims=True)

    def _values(self, outputs):
        if self._atoms is None:
            return outputs[..., 0]
        return np.exp(reference.log_softmax(outputs)) @ self._atoms

    def _target(self, r_t, d_t, o_t):
        """The targets: [B, Z] probabilities, or [B] numbers."""
        outputs = self._outputs(self.weights, "target_", o_t)
        chooser = self._outputs(self.weights, "", o_t) if self._config.double_q else outputs
        values = self._values(chooser)
        if self._is_masked:
            values = np.where(o_t[:, -NUM_ACTIONS:] > 0, values, -np.inf)
        best = outputs[np.arange(len(r_t)), values.argmax(-1)]
        if self._atoms is None:
            return r_t + d_t * best[:, 0]
        return reference.project(r_t, d_t, np.exp(reference.log_softmax(best)), self._atoms)

    def step(self, probabilities, table_size, transition):
        """Trains on a global batch; returns the new priorities and the metrics."""
        config, start = self._config, self.weights
        a_tm1, rows = transition[1], np.arange(len(transition[1]))
        o_tm1, _, r_t, d_t, o_t = (np.asarray(x, np.float64) for x in transition[:5])
        target = self._target(r_t, d_t, o_t)
        weighting = self.importance(probabilities, table_size)

        def td_losses(weights):
            outputs = self._outputs(weights, "", o_tm1)[rows, a_tm1]
            if self._atoms is None:
                size = np.abs(target - outputs[:, 0])
                return np.where(size <= 1, size**2 / 2, size - 0.5)
            return -(target * reference.log_softmax(outputs)).sum(-1)

        def loss(weights):
            return (weighting * td_losses(weights)).mean()

        gradients = self.gradients({"policy": loss})["policy"]
        self.train({"policy": self.clip(gradients, config.max_gradient_norm)})
        self.steps += 1
        if self.steps % config.target_update_period == 0:
            self.weights = reference.update_targets(self.weights, 1.0)
        outputs = self._outputs(start, "", o_tm1)[rows, a_tm1]
        values = self._values(outputs)
        metrics = {"critic_loss": loss(start), "q_mean": values.mean()}
        if self._atoms is None:
            priorities = np.abs(target - values)
        else:
            safe = np.where(target > 0, target, 1.0)
            priorities = td_losses(start) + (target * np.log(safe)).sum(-1)
            probs = np.exp(reference.log_softmax(outputs))
            metrics["value_edge_mass_low"] = probs[:, 0].mean()
            metrics["value_edge_mass_high"] = probs[:, -1].mean()
        return priorities, metrics


def spec_of(observations):
    actions = specs.DiscreteArray(NUM_ACTIONS, np.int32)
    return fixed_samples.make_spec(observations, actions, specs.Array((), np.float32))


@pytest.mark.parametrize("case", CASES)
def test_every_variable_is_that_of_the_reference_after_every_step(case):
    replicator_name, is_masked, changes = CASES[case]
    config = dataclasses.replace(CONFIG, **changes)
    agent = DQN(config, spec_of(MASKED if is_masked else STATE))
    is_categorical = config.critic_loss == "categorical"
    atoms = agent.value_range.atoms().astype(np.float64) if is_categorical else None
    trained = reference.check_training(
        replicator_name,
        agent,
        lambda weights: NumpyDQN(config, atoms, is_masked, weights),
        lambda path, number: not path.startswith("target_") or number % 2 == 1,
        rtol=2e-4,
        atol=2e-5,
    )
    # Norms lie on both sides of the limit; otherwise, it would not be tested.
    assert set(trained.clipped) == {True, False}
