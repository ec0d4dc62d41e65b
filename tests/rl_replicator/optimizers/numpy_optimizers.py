"""Optimizers in NumPy and float64, written from the papers; they share no code with the package."""

import numpy as np


def clip(updates, max_norm):
    """Scales arrays together to a global norm of at most `max_norm`."""
    norm = np.sqrt(sum(np.sum(np.square(u)) for u in updates))
    return [u * min(1.0, max_norm / norm) for u in updates]


class Adam:
    """Kingma & Ba 2015, Algorithm 1."""

    def __init__(self, rate, beta1, beta2, epsilon):
        self._rate, self._betas, self._epsilon = rate, (beta1, beta2), epsilon
        self._t, self._m, self._v = 0, {}, {}

    def apply(self, updates, parameters):
        self._t += 1
        beta1, beta2 = self._betas
        for i, (g, w) in enumerate(zip(updates, parameters, strict=True)):
            if g is None:
                continue
            self._m[i] = beta1 * self._m.get(i, 0.0) + (1 - beta1) * g
            self._v[i] = beta2 * self._v.get(i, 0.0) + (1 - beta2) * g**2
            m_hat = self._m[i] / (1 - beta1**self._t)
            v_hat = self._v[i] / (1 - beta2**self._t)
            w -= self._rate * m_hat / (np.sqrt(v_hat) + self._epsilon)


class Momentum:
    """Goyal et al. 2017, equation 9, with Nesterov's look-ahead; `rate` is a function of the step.

    In the textbook's form: the velocity accumulates gradients without the learning rate, and the
    step looks ahead along the next velocity.
    """

    def __init__(self, rate, momentum, decay, decayed):
        self._rate, self._momentum, self._decay, self._decayed = rate, momentum, decay, decayed
        self._t, self._v = 0, {}

    def apply(self, updates, parameters):
        for i, (g, w) in enumerate(zip(updates, parameters, strict=True)):
            if g is None:
                continue
            if self._decayed[i]:
                g = g + self._decay * w
            before = self._v.get(i, np.zeros_like(w))
            self._v[i] = self._momentum * before + g
            # m v + g, with v = m v_before + g.
            w -= self._rate(self._t) * (self._momentum**2 * before + (1 + self._momentum) * g)
        self._t += 1


class Lars:
    """You et al. 2017, Algorithm 1."""

    def __init__(self, rate, momentum, decay, trust, decayed):
        self._rate, self._momentum, self._decay = rate, momentum, decay
        self._trust, self._decayed = trust, decayed
        self._t, self._v = 0, {}

    def apply(self, updates, parameters):
        for i, (g, w) in enumerate(zip(updates, parameters, strict=True)):
            if g is None:
                continue
            local = 1.0
            if self._decayed[i]:
                norm_w, norm_g = np.sqrt(np.sum(w * w)), np.sqrt(np.sum(g * g))
                if norm_w > 0 and norm_g > 0:
                    local = self._trust * norm_w / (norm_g + self._decay * norm_w)
                g = g + self._decay * w
            step = self._rate(self._t) * local * g
            self._v[i] = self._momentum * self._v.get(i, np.zeros_like(w)) + step
            w -= self._v[i]
        self._t += 1
