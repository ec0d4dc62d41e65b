"""D4PG's learner step in NumPy float64, which shares no code with the learner under test.

Written from the papers: Barth-Maron et al. 2018 (arXiv:1804.08617), Algorithm 1; Bellemare et al.
2017 (arXiv:1707.06887), Algorithm 1.
"""

import numpy as np

from tests.agents.actor_critic_reference import (
    ActorCritic,
    gradient,
    log_softmax,
    mlp,
    names,
    project,
    update_targets,
)

_EPSILON = 1e-6


def encode(weights, prefix, observation):
    """One linear layer and tanh; the identity if there is no encoder."""
    if f"{prefix}encoder/w" not in weights:
        return observation
    return np.tanh(observation @ weights[f"{prefix}encoder/w"] + weights[f"{prefix}encoder/b"])


def act(weights, prefix, features):
    """[B, F] -> [B, A]."""
    return np.tanh(mlp(weights, f"{prefix}policy", features))


def log_probabilities(weights, prefix, features, action):
    """Each critic's log-probabilities: [B, F], [B, A] -> [critics, B, Z]."""
    pair = [f"{prefix}critic/{which}" for which in ("first", "second")]
    names = pair if f"{pair[0]}/head/w" in weights else [f"{prefix}critic"]
    inputs = np.concatenate([features, action], -1)
    return np.stack([log_softmax(mlp(weights, name, inputs)) for name in names])


def smaller(log_probs, atoms):
    """Of each example, the distribution with the smaller mean: [critics, B, Z] -> [B, Z]."""
    probs = np.exp(log_probs)
    which = (probs @ atoms).argmin(0)
    return probs[which, np.arange(len(which))]


class NumpyD4PG(ActorCritic):
    """The weights of all six networks, and the step that trains them on a global batch."""

    def __init__(self, config, atoms, free_preactivation, weights):
        rates = {"policy": config.policy_learning_rate, "critic": config.critic_learning_rate}
        super().__init__(weights, config.weight_decay, **rates)
        self.trained = ["encoder", "policy", "critic"]
        self._config, self._atoms = config, atoms.astype(np.float64)
        self._free = free_preactivation
        self.clipped_actions = []

    def step(self, probabilities, table_size, transition):
        """Trains on a global batch; returns the new priorities and the metrics."""
        s, atoms, start = self._config, self._atoms, self.weights
        o_tm1, a_tm1, r_t, d_t, o_t = (np.asarray(x, np.float64) for x in transition[:5])

        features_t = encode(start, "target_", o_t)
        target_log = log_probabilities(
            start, "target_", features_t, act(start, "target_", features_t)
        )
        target = project(r_t, d_t, smaller(target_log, atoms), atoms)

        importance = self.importance(probabilities, table_size)

        def td_losses(weights):
            features = encode(weights, "", o_tm1)
            return -(target * log_probabilities(weights, "", features, a_tm1)).sum(-1)

        def critic_loss(weights):
            return (importance * td_losses(weights).sum(0)).mean()

        critic_gradients = gradient(critic_loss, start, names(start, "encoder", "critic"))

        features = encode(start, "", o_tm1)
        action = act(start, "", features)

        def q(a):
            return smaller(log_probabilities(start, "", features, a), atoms) @ atoms

        dq_da = np.empty_like(action)
        for i in range(action.shape[1]):
            move = np.zeros_like(action)
            move[:, i] = _EPSILON
            dq_da[:, i] = (q(action + move) - q(action - move)) / (2 * _EPSILON)
        norms = np.linalg.norm(dq_da, axis=-1)
        self.clipped_actions += (norms > s.max_action_gradient_norm).tolist()
        dq_da *= np.minimum(1.0, s.max_action_gradient_norm / norms)[:, None]

        def policy_loss(weights):
            follows_q = (dq_da * act(weights, "", features)).sum(-1).mean()
            sizes = np.abs(mlp(weights, "policy", features))
            excess = np.maximum(sizes - self._free, 0.0)
            assert {True, False} == set((excess > 0).ravel())
            squares = (excess**2).sum(-1).mean()
            return s.preactivation_penalty / 2 * squares - follows_q

        policy_gradients = gradient(policy_loss, start, names(start, "policy"))

        self.train(
            {
                "critic": self.clip(critic_gradients, s.max_gradient_norm),
                "policy": self.clip(policy_gradients, s.max_gradient_norm),
            }
        )
        self.steps += 1
        if self.steps % s.target_update_period == 0:
            self.weights = update_targets(self.weights, s.target_update_rate)

        losses = td_losses(start).max(0)
        probs = smaller(log_probabilities(start, "", features, action), atoms)
        safe = np.where(target > 0, target, 1.0)
        priorities = np.maximum(losses + (target * np.log(safe)).sum(-1), 0.0)
        metrics = {
            "critic_loss": critic_loss(start),
            "q_mean": (probs @ atoms).mean(),
            "value_edge_mass_low": probs[:, 0].mean(),
            "value_edge_mass_high": probs[:, -1].mean(),
        }
        return priorities, metrics
