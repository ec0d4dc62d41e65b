"""Learner steps in NumPy float64, for agents with two critics that predict the expected return.

It shares no code with what it judges. Every derivative is a central finite difference, so no sign
and no stopped gradient of a learner can hide in it. Weights are `{path: array}`.
"""

import numpy as np

from tests.agents.d4pg.numpy_step import Adam, gradient, mlp

__all__ = ["Adam", "gradient", "importance", "mlp", "names", "twin", "update_targets"]


def names(weights, *networks):
    """The paths of the named networks' variables."""
    return [path for path in weights if path.split("/")[0] in networks]


def twin(weights, prefix, observation, action):
    """Both critics' values: [B, N], [B, A] -> [B, 2]."""
    x = np.concatenate([observation, action], -1)
    values = [mlp(weights, f"{prefix}critic/{which}", x) for which in ("first", "second")]
    return np.concatenate(values, -1)


def importance(probabilities, table_size, beta):
    """Schaul et al. 2016, section 3.4, divided by the largest weight."""
    weights = (table_size * probabilities) ** -beta
    return weights / weights.max()


def update_targets(weights, tau):
    """Every target variable that is there moves by tau towards its online variable."""
    new = dict(weights)
    for path in weights:
        if path.startswith("target_"):
            new[path] = (1 - tau) * weights[path] + tau * weights[path.removeprefix("target_")]
    return new
