"""Exploration of agents with a deterministic policy: what actors do to its actions.

`--agent.exploration` names one of `EXPLORATIONS`, or a user's own function by its import path. It
is called with (config, context), an `agents.agent.ExplorationContext`, once for each environment.
It returns a function from the policy's action [A] to the action to take [A], float32. Actors clip
the result to [-1, 1].
"""

from collections.abc import Callable

import numpy as np

from agents.agent import ExplorationContext
from agents.config import NoiseSettings
from agents.registry import find_part

Exploration = Callable[[np.ndarray], np.ndarray]


class LinearSchedule:
    """Changes linearly from one value to another and then stays constant."""

    def __init__(self, start: float, end: float, steps: int):
        """Stores the schedule.

        Args:
          start: value at step 0.
          end: value from step `steps` on.
          steps: at least 1.
        """
        self._start, self._end, self._steps = start, end, steps

    def __call__(self, step: int) -> float:
        """Returns the value at a step."""
        return self._start + min(step / self._steps, 1.0) * (self._end - self._start)


class GaussianNoise:
    """Adds independent Gaussian noise to every action dimension."""

    def __init__(self, sigma: Callable[[], float], random: np.random.Generator):
        """Stores the source of noise.

        Args:
          sigma: returns the current standard deviation, in units of actions in [-1, 1].
          random: generator of the noise.
        """
        self._sigma = sigma
        self._random = random

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Returns a noisy action: [A] float32 -> [A] float32."""
        noise = self._random.standard_normal(action.shape, np.float32)
        return action + np.float32(self._sigma()) * noise


def gaussian(config: NoiseSettings, context: ExplorationContext) -> GaussianNoise:
    """Gaussian noise whose standard deviation follows the config's linear schedule.

    Several environments share a geometric ladder of standard deviations around the schedule's, as
    the epsilons of Ape-X do (Horgan et al. 2018, arXiv:1803.00933): no one value suits every task
    and every stage of training.

    Args:
      config: settings of the agent.
      context: of one environment.

    Returns:
      The noise.
    """
    start, end = config.exploration_sigma, config.exploration_sigma_end
    schedule = LinearSchedule(start, start if end is None else end, config.exploration_steps)
    factor = config.exploration_spread ** (2 * context.rank - 1)
    return GaussianNoise(lambda: factor * schedule(context.environment_steps()), context.random)


def none(config: NoiseSettings, context: ExplorationContext) -> Exploration:
    """No exploration; see `gaussian` for the arguments."""
    del config, context
    return lambda action: action


EXPLORATIONS = {"gaussian": gaussian, "none": none}


def make_exploration(config: NoiseSettings, context: ExplorationContext) -> Exploration:
    """Makes the exploration that `config.exploration` names, clipped to the action range.

    Args:
      config: settings of the agent.
      context: of one environment.

    Returns:
      A function from the policy's action to the action to take, both [A] float32.

    Raises:
      ConfigError: if there is no such exploration.
    """
    explore = find_exploration(config)(config, context)
    low, high = np.float32(-1), np.float32(1)

    def clipped(action: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(explore(action), low), high, dtype=np.float32)

    return clipped


def find_exploration(config: NoiseSettings) -> Callable[..., Exploration]:
    """Returns the function that `config.exploration` names.

    Raises:
      ConfigError: if there is none.
    """
    return find_part(config.exploration, EXPLORATIONS, "agent.exploration")
