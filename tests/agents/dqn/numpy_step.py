"""DQN's learner step in NumPy float64, which shares no code with the learner under test.

Written from the papers: Bellemare et al. 2017 (arXiv:1707.06887), Algorithm 1; van Hasselt et al.
2016 (arXiv:1509.06461), equation 4; Wang et al. 2016 (arXiv:1511.06581), equation 9.
"""

import dataclasses

import numpy as np

from tests.agents.actor_critic_reference import Adam, gradient, importance, mlp, names
from tests.agents.d4pg.numpy_step import clip_together, project


@dataclasses.dataclass
class Settings:
    """What the step depends on; without atoms, the values are numbers with the Huber loss."""

    atoms: np.ndarray | None
    num_actions: int
    is_double: bool
    is_duelling: bool
    is_masked: bool
    learning_rate: float
    target_update_period: int
    max_gradient_norm: float
    exponent_start: float
    exponent_end: float
    importance_steps: int


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


class NumpyDQN:
    """The weights of both networks, and the step that trains them on a global batch."""

    def __init__(self, settings, weights):
        self.weights = {name: array.astype(np.float64) for name, array in weights.items()}
        self._settings = settings
        self.steps = 0
        self.clipped_gradients = []
        self._adam = Adam(settings.learning_rate)

    def _outputs(self, weights, prefix, observation):
        """[B, N] -> [B, A, Z], without the mask at the end of an observation."""
        s, name = self._settings, f"{prefix}policy"
        features = observation[:, : -s.num_actions] if s.is_masked else observation
        if not s.is_duelling:
            return mlp(weights, name, features).reshape(len(features), s.num_actions, -1)
        # `mlp` ends with a linear head: here, the identity.
        head = np.eye(len(weights[f"{name}/linear_0/b"]))
        shared = mlp(
            weights | {f"{name}/head/w": head, f"{name}/head/b": np.zeros(len(head))},
            name,
            features,
        )
        value = mlp(weights, f"{name}/value", shared)[:, None]
        advantage = mlp(weights, f"{name}/advantage", shared)
        advantage = advantage.reshape(len(features), s.num_actions, -1)
        return value + advantage - advantage.mean(1, keepdims=True)

    def _values(self, outputs):
        atoms = self._settings.atoms
        return outputs[..., 0] if atoms is None else np.exp(log_softmax(outputs)) @ atoms

    def _target(self, r_t, d_t, o_t):
        """The targets: [B, Z] probabilities, or [B] numbers."""
        s, rows = self._settings, np.arange(len(r_t))
        outputs = self._outputs(self.weights, "target_", o_t)
        chooser = self._outputs(self.weights, "", o_t) if s.is_double else outputs
        values = self._values(chooser)
        if s.is_masked:
            values = np.where(o_t[:, -s.num_actions :] > 0, values, -np.inf)
        best = outputs[rows, values.argmax(-1)]
        if s.atoms is None:
            return r_t + d_t * best[:, 0]
        return project(r_t, d_t, np.exp(log_softmax(best)), s.atoms)

    def step(self, probabilities, table_size, transition):
        """Trains on a global batch; returns the new priorities and the metrics."""
        s, start = self._settings, self.weights
        a_tm1, rows = transition[1], np.arange(len(transition[1]))
        o_tm1, _, r_t, d_t, o_t = (np.asarray(x, np.float64) for x in transition)
        target = self._target(r_t, d_t, o_t)
        progress = min(1.0, self.steps / s.importance_steps)
        beta = (1 - progress) * s.exponent_start + progress * s.exponent_end
        weighting = importance(probabilities, table_size, beta)

        def td_losses(weights):
            outputs = self._outputs(weights, "", o_tm1)[rows, a_tm1]
            if s.atoms is None:
                size = np.abs(target - outputs[:, 0])
                return np.where(size <= 1, size**2 / 2, size - 0.5)
            return -(target * log_softmax(outputs)).sum(-1)

        def loss(weights):
            return (weighting * td_losses(weights)).mean()

        gradients, norm = clip_together(
            gradient(loss, start, names(start, "policy")), s.max_gradient_norm
        )
        self.clipped_gradients.append(norm > s.max_gradient_norm)
        outputs = self._outputs(start, "", o_tm1)[rows, a_tm1]
        values = self._values(outputs)
        metrics = {"critic_loss": loss(start), "q_mean": values.mean()}
        if s.atoms is None:
            priorities = np.abs(target - values)
        else:
            safe = np.where(target > 0, target, 1.0)
            priorities = td_losses(start) + (target * np.log(safe)).sum(-1)
            probs = np.exp(log_softmax(outputs))
            metrics["value_edge_mass_low"] = probs[:, 0].mean()
            metrics["value_edge_mass_high"] = probs[:, -1].mean()
        self.weights = self._adam.apply(start, gradients)
        self.steps += 1
        if self.steps % s.target_update_period == 0:
            for path in names(start, "target_policy"):
                self.weights[path] = self.weights[path.removeprefix("target_")]
        return priorities, metrics
