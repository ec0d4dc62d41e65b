"""D4PG's learner step in NumPy float64, which shares no code with the learner under test.

Written from the papers: Barth-Maron et al. 2018 (arXiv:1804.08617), Algorithm 1; Bellemare et al.
2017 (arXiv:1707.06887), Algorithm 1; Schaul et al. 2016 (arXiv:1511.05952); Kingma & Ba 2015
(arXiv:1412.6980). Every derivative is a central finite difference, so a wrong sign or a wrongly
stopped gradient in the learner shows.
"""

import dataclasses

import numpy as np

_EPSILON = 1e-6  # Of the finite differences: their error is about 1e-9.

Weights = dict[str, np.ndarray]


@dataclasses.dataclass
class Settings:
    """What the step depends on."""

    atoms: np.ndarray
    policy_learning_rate: float
    critic_learning_rate: float
    weight_decay: float
    target_update_period: int
    target_update_rate: float
    preactivation_penalty: float
    free_preactivation: float
    max_action_gradient_norm: float | None
    max_gradient_norm: float | None
    exponent_start: float
    exponent_end: float
    importance_steps: int


def mlp(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    """linear, LayerNorm, tanh, then linear and elu for each further layer, then a linear head."""
    head = f"{name}/head"
    if f"{name}/torso/linear_0/w" in weights:
        name = f"{name}/torso"
    x = x @ weights[f"{name}/linear_0/w"] + weights[f"{name}/linear_0/b"]
    centred = x - x.mean(-1, keepdims=True)
    x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    x = x * weights[f"{name}/layer_norm/scale"] + weights[f"{name}/layer_norm/offset"]
    x = np.tanh(x)
    layer = 1
    while f"{name}/linear_{layer}/w" in weights:
        x = x @ weights[f"{name}/linear_{layer}/w"] + weights[f"{name}/linear_{layer}/b"]
        x = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
        layer += 1
    return x @ weights[f"{head}/w"] + weights[f"{head}/b"]


def encode(weights: Weights, prefix: str, observation: np.ndarray) -> np.ndarray:
    """One linear layer and tanh; the identity if there is no encoder."""
    if f"{prefix}encoder/w" not in weights:
        return observation
    return np.tanh(observation @ weights[f"{prefix}encoder/w"] + weights[f"{prefix}encoder/b"])


def act(weights: Weights, prefix: str, features: np.ndarray) -> np.ndarray:
    """[B, F] -> [B, A]."""
    return np.tanh(mlp(weights, f"{prefix}policy", features))


def log_probabilities(
    weights: Weights, prefix: str, features: np.ndarray, action: np.ndarray
) -> np.ndarray:
    """Each critic's log-probabilities: [B, F], [B, A] -> [critics, B, Z]."""
    pair = [f"{prefix}critic/{which}" for which in ("first", "second")]
    names = pair if f"{pair[0]}/head/w" in weights else [f"{prefix}critic"]
    inputs = np.concatenate([features, action], -1)
    logits = np.stack([mlp(weights, name, inputs) for name in names])
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def smaller(log_probs: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    """Of each example, the distribution with the smaller mean: [critics, B, Z] -> [B, Z]."""
    probs = np.exp(log_probs)
    which = (probs @ atoms).argmin(0)
    return probs[which, np.arange(len(which))]


def project(r, d, probs, atoms):
    """Bellemare et al. 2017, Algorithm 1, as loops."""
    spacing = atoms[1] - atoms[0]
    result = np.zeros_like(probs)
    for i in range(len(r)):
        for j, atom in enumerate(atoms):
            b = (min(max(r[i] + d[i] * atom, atoms[0]), atoms[-1]) - atoms[0]) / spacing
            low = min(int(b), len(atoms) - 2)
            result[i, low] += probs[i, j] * (low + 1 - b)
            result[i, low + 1] += probs[i, j] * (b - low)
    return result


def gradient(loss, weights: Weights, names) -> Weights:
    """Central finite differences of a scalar function of `weights`."""
    result = {}
    for name in names:
        array = np.zeros_like(weights[name])
        for index in np.ndindex(*array.shape):
            sides = []
            for sign in (1, -1):
                moved = weights[name].copy()
                moved[index] += sign * _EPSILON
                sides.append(loss(weights | {name: moved}))
            array[index] = (sides[0] - sides[1]) / (2 * _EPSILON)
        result[name] = array
    return result


class Adam:
    """Kingma & Ba 2015, Algorithm 1; with a decay, Loshchilov & Hutter 2019, Algorithm 2."""

    def __init__(self, learning_rate: float, weight_decay: float = 0.0):
        self._rate, self._decay, self._t = learning_rate, weight_decay, 0
        self._m: Weights = {}
        self._v: Weights = {}

    def apply(self, weights: Weights, gradients: Weights) -> Weights:
        """The new weights."""
        self._t += 1
        new = dict(weights)
        for name, g in gradients.items():
            self._m[name] = 0.9 * self._m.get(name, 0.0) + 0.1 * g
            self._v[name] = 0.999 * self._v.get(name, 0.0) + 0.001 * g * g
            m_hat = self._m[name] / (1 - 0.9**self._t)
            v_hat = self._v[name] / (1 - 0.999**self._t)
            direction = m_hat / (np.sqrt(v_hat) + 1e-8) + self._decay * weights[name]
            new[name] = weights[name] - self._rate * direction
        return new


def clip_together(gradients: Weights, max_norm: float | None) -> tuple[Weights, float]:
    """Returns the gradients, scaled to a global norm of at most `max_norm`, and the norm before."""
    norm = float(np.sqrt(sum((g**2).sum() for g in gradients.values())))
    scale = 1.0 if max_norm is None or norm <= max_norm else max_norm / norm
    return {name: scale * g for name, g in gradients.items()}, norm


class NumpyD4PG:
    """The weights of all six networks, and the step that trains them on a global batch."""

    def __init__(self, settings: Settings, weights: Weights):
        """Args:
        settings: of the step.
        weights: by path, of `encoder`, `policy`, `critic` and their copies with "target_".
        """
        self.weights = {name: array.astype(np.float64) for name, array in weights.items()}
        self._settings = settings
        self.steps = 0
        # For every norm of a gradient, whether it is over its limit.
        self.clipped_actions: list[bool] = []
        self.clipped_gradients: list[bool] = []
        self._policy_adam = Adam(settings.policy_learning_rate, settings.weight_decay)
        self._critic_adam = Adam(settings.critic_learning_rate, settings.weight_decay)

    def step(self, probabilities, table_size, transition):
        """Trains on a global batch; returns the new priorities and the metrics."""
        s, atoms, start = self._settings, self._settings.atoms, self.weights
        o_tm1, a_tm1, r_t, d_t, o_t = (np.asarray(x, np.float64) for x in transition[:5])

        features_t = encode(start, "target_", o_t)
        target_log = log_probabilities(
            start, "target_", features_t, act(start, "target_", features_t)
        )
        target = project(r_t, d_t, smaller(target_log, atoms), atoms)

        progress = min(1.0, self.steps / s.importance_steps)
        beta = (1 - progress) * s.exponent_start + progress * s.exponent_end
        importance = (table_size * probabilities) ** -beta
        importance = importance / importance.max()

        def td_losses(weights):
            features = encode(weights, "", o_tm1)
            return -(target * log_probabilities(weights, "", features, a_tm1)).sum(-1)

        def critic_loss(weights):
            return (importance * td_losses(weights).sum(0)).mean()

        critic_gradients = gradient(critic_loss, start, self._names("encoder", "critic"))

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
        if s.max_action_gradient_norm is not None:
            self.clipped_actions += (norms > s.max_action_gradient_norm).tolist()
            dq_da *= np.minimum(1.0, s.max_action_gradient_norm / norms)[:, None]

        def policy_loss(weights):
            follows_q = (dq_da * act(weights, "", features)).sum(-1).mean()
            sizes = np.abs(mlp(weights, "policy", features))
            excess = np.maximum(sizes - s.free_preactivation, 0.0)
            assert {True, False} == set((excess > 0).ravel())
            squares = (excess**2).sum(-1).mean()
            return s.preactivation_penalty / 2 * squares - follows_q

        policy_gradients = gradient(policy_loss, start, self._names("policy"))

        critic_gradients, critic_norm = clip_together(critic_gradients, s.max_gradient_norm)
        policy_gradients, policy_norm = clip_together(policy_gradients, s.max_gradient_norm)
        self.clipped_gradients += [
            norm > s.max_gradient_norm for norm in (critic_norm, policy_norm)
        ]
        self.weights = self._critic_adam.apply(self.weights, critic_gradients)
        self.weights = self._policy_adam.apply(self.weights, policy_gradients)
        self.steps += 1
        if self.steps % s.target_update_period == 0:
            self._update_targets()

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

    def _names(self, *networks: str) -> list[str]:
        return [name for name in self.weights if name.split("/")[0] in networks]

    def _update_targets(self) -> None:
        tau = self._settings.target_update_rate
        for name in self._names("encoder", "policy", "critic"):
            old = self.weights[f"target_{name}"]
            self.weights[f"target_{name}"] = (1 - tau) * old + tau * self.weights[name]
