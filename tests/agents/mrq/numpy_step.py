"""MR.Q's learner step in NumPy float64, which shares no code with the learner under test.

Written from Fujimoto et al. 2025 (arXiv:2501.16142), sections 4.1 and 4.2; Fujimoto et al. 2020
(arXiv:2007.06049), equation 13; and Jang et al. 2017 (arXiv:1611.01144), equation 2.
"""

import math

import numpy as np

from tests.agents.actor_critic_reference import ActorCritic, gradient, names, norm, update_targets


def layers(weights, name, x):
    """linear, LayerNorm, elu for each layer."""
    index = 0
    while f"{name}/linear_{index}/w" in weights:
        x = x @ weights[f"{name}/linear_{index}/w"] + weights[f"{name}/linear_{index}/b"]
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        x = elu(x * weights[f"{name}/norm_{index}/scale"] + weights[f"{name}/norm_{index}/offset"])
        index += 1
    return x


def linear(weights, name, x):
    return x @ weights[f"{name}/w"] + weights[f"{name}/b"]


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def two_hot(values, num_bins):
    """As a loop: each value between its two bins."""
    bins = [math.copysign(math.expm1(abs(x)), x) for x in np.linspace(-10, 10, num_bins)]
    result = np.zeros((len(values), num_bins))
    for row, value in zip(result, values, strict=True):
        value = min(max(value, bins[0]), bins[-1])
        low = max(i for i in range(num_bins - 1) if bins[i] <= value)
        share = (value - bins[low]) / (bins[low + 1] - bins[low])
        row[low], row[low + 1] = 1 - share, share
    return result


class NumpyMRQ(ActorCritic):
    """The weights of all networks, and the step that trains them on a global batch."""

    num_augmented = 1

    def __init__(self, config, mask_size, num_actions, weights):
        """`mask_size` and `num_actions` are 0 if actions are continuous."""
        rates = {
            "model": config.encoder_learning_rate,
            "critic": config.critic_learning_rate,
            "policy": config.policy_learning_rate,
        }
        super().__init__(weights, config.weight_decay, **rates)
        self._config, self._mask_size, self._num_actions = config, mask_size, num_actions
        self._scale, self._target_scale, self._seen = 1.0, 1.0, []
        self.priorities = []

    def _encode(self, weights, prefix, observation):
        size = observation.shape[-1] - self._mask_size
        return layers(weights, f"{prefix}encoder", observation[..., :size])

    def _pair(self, weights, prefix, features, action):
        name = f"{prefix}pair_encoder"
        inputs = [features, elu(linear(weights, f"{name}/action", action))]
        hidden = layers(weights, name, np.concatenate(inputs, -1))
        return linear(weights, f"{name}/output", hidden)

    def _values(self, weights, prefix, pair):
        return np.concatenate(
            [
                linear(weights, f"{name}/head", layers(weights, name, pair))
                for name in (f"{prefix}critic/first", f"{prefix}critic/second")
            ],
            -1,
        )

    def _policy(self, weights, prefix, features):
        name = f"{prefix}policy"
        return linear(weights, f"{name}/head", layers(weights, name, features))

    def _soft(self, outputs, mask, noise):
        if not self._num_actions:
            return np.tanh(outputs)
        u = (1 + np.vectorize(math.erf)(noise / math.sqrt(2))) / 2
        outputs = outputs - np.log(-np.log(u))
        if self._mask_size:
            outputs = np.where(mask > 0, outputs, -1e300)
        return softmax(outputs / self._config.temperature)

    def _one_hot(self, index):
        return np.eye(self._num_actions)[index]

    def _mask(self, observation):
        return observation[:, observation.shape[-1] - self._mask_size :]

    def _target(self, o, r, d, valid):
        """y of each example: at most n rewards of one episode, and a smoothed action after them."""
        config, w = self._config, self.weights
        noises = [self.draw((len(o), self._action_size), stream) for stream in (1, 2)]
        gumbel, noise = (x.numpy().astype(np.float64) for x in noises)
        n = np.minimum(valid.sum(1).astype(int), config.n_step)
        o_n = o[np.arange(len(o)), n]
        features = self._encode(w, "target_", o_n)
        action = self._soft(self._policy(w, "target_", features), self._mask(o_n), gumbel)
        factor = 0.5 if self._num_actions else 1.0
        limit = config.target_noise_clip
        action = action + factor * np.clip(config.target_noise_sigma * noise, -limit, limit)
        if self._num_actions:
            if self._mask_size:
                action = np.where(self._mask(o_n) > 0, action, -np.inf)
            action = self._one_hot(action.argmax(-1))
        else:
            action = np.clip(action, -1, 1)
        q = self._values(w, "target_", self._pair(w, "target_", features, action)).min(-1)
        target = np.empty(len(o))
        for row, steps in enumerate(n):
            value = q[row] * self._target_scale
            for step in reversed(range(steps)):
                value = r[row, step] + d[row, step] * value
            target[row] = value / self._scale
        return target

    def _model_errors(self, weights, o, a, r, d, valid, features):
        z, errors = self._encode(weights, "model/model_", o[:, 0]), np.zeros(3)
        size, bins = features.shape[-1], self._config.num_bins
        for step in range(self._config.horizon):
            out = linear(weights, "model/head", self._pair(weights, "model/model_", z, a[:, step]))
            end, z, logits = out[:, 0], out[:, 1 : 1 + size], out[:, 1 + size :]
            log_probs = np.log(softmax(logits))
            is_end = valid[:, step] * (d[:, step] == 0)
            each = [
                ((z - features[:, step + 1]) ** 2).mean(-1),
                -(two_hot(r[:, step], bins) * log_probs).sum(-1),
                (end - is_end) ** 2,
            ]
            errors += [(valid[:, step] * error).mean() for error in each]
        return errors

    def step(self, probabilities, table_size, sequence):
        """Trains on a global batch; returns the new priorities and the metrics."""
        config = self._config
        o, a, r, d, valid = (np.asarray(x, np.float64) for x in sequence[:5])
        a = self._one_hot(np.asarray(sequence.action)) if self._num_actions else a
        self._action_size = a.shape[-1]
        share = 1 / (probabilities * table_size)
        self._seen.append(((np.abs(r[:, 0]) * share).sum(), share.sum()))
        if self.steps % config.target_update_period == 0:
            total = np.sum(self._seen, axis=0)
            self._target_scale, self._scale = self._scale, total[0] / total[1]
            self._seen = []
            trained = {
                path.removeprefix("model/model_"): array
                for path, array in self.weights.items()
                if path.startswith("model/model_")
            }
            self.weights = update_targets(self.weights, 1.0) | trained
        start = self.weights
        features = self._encode(start, "", o)
        target = self._target(o, r, d, valid)
        pair = self._pair(start, "", features[:, 0], a[:, 0])
        td_errors = target[:, None] - self._values(start, "", pair)
        weight = self.importance(probabilities, table_size)
        gumbel = self.draw((len(o), self._action_size), 3).numpy().astype(np.float64)

        def model_loss(weights):
            errors = self._model_errors(weights, o, a, r, d, valid, features)
            return errors @ (config.dynamics_weight, config.reward_weight, config.end_weight)

        def critic_loss(weights):
            size = np.abs(target[:, None] - self._values(weights, "", pair))
            return (weight * np.where(size < 1, size**2 / 2, size - 0.5).mean(-1)).mean()

        def policy_loss(weights):
            outputs = self._policy(weights, "", features[:, 0])
            action = self._soft(outputs, self._mask(o[:, 0]), gumbel)
            q = self._values(weights, "", self._pair(start, "", features[:, 0], action))
            return -q.mean() + config.preactivation_penalty * (outputs**2).mean()

        metrics = {"critic_loss": critic_loss(start), "reward_scale": self._scale}
        errors = self._model_errors(start, o, a, r, d, valid, features)
        metrics |= dict(zip(("dynamics_error", "reward_error", "end_error"), errors, strict=True))
        metrics["q_mean"] = self._scale * (target[:, None] - td_errors).mean()
        self._train("model", model_loss, None)
        metrics["critic_gradient_norm"] = self._train(
            "critic", critic_loss, config.max_gradient_norm
        )
        metrics["policy_loss"] = policy_loss(self.weights)  # After the update of the critics.
        metrics["policy_gradient_norm"] = self._train("policy", policy_loss, None)
        self.steps += 1
        priorities = np.maximum(np.abs(td_errors).max(-1), 1.0)
        self.priorities.extend(priorities)
        return priorities, metrics

    def _train(self, name, loss, max_norm):
        gradients = gradient(loss, self.weights, names(self.weights, name))
        self.train({name: gradients if max_norm is None else self.clip(gradients, max_norm)})
        return norm(gradients)
