"""Exploration of agents with a deterministic policy: what actors do to its actions.

`--agent.exploration` names one of `EXPLORATIONS`, or a user's own function by its import path. It
is called with (config, random, environment_steps) and returns a function from the policy's action
[A] to the action to take [A], float32. Actors clip the result to [-1, 1].
"""

from collections.abc import Callable

import numpy as np

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
        """Returns a noisy action: [A] float32 -> [A] float32 in [-1, 1]."""
        noise = self._random.standard_normal(action.shape, np.float32)
        return np.clip(action + np.float32(self._sigma()) * noise, -1.0, 1.0, dtype=np.float32)


def gaussian(
    config: NoiseSettings, random: np.random.Generator, environment_steps: Callable[[], int]
) -> GaussianNoise:
    """Gaussian noise whose standard deviation follows the config's linear schedule.

    Args:
      config: settings of the agent.
      random: generator of the noise.
      environment_steps: returns the environment steps that all actors have taken, roughly.

    Returns:
      The noise.
    """
    start, end = config.exploration_sigma, config.exploration_sigma_end
    schedule = LinearSchedule(start, start if end is None else end, config.exploration_steps)
    return GaussianNoise(lambda: schedule(environment_steps()), random)


def none(
    config: NoiseSettings, random: np.random.Generator, environment_steps: Callable[[], int]
) -> Exploration:
    """No exploration; see `gaussian` for the arguments."""
    del config, random, environment_steps
    return lambda action: action


EXPLORATIONS = {"gaussian": gaussian, "none": none}


def make_exploration(
    config: NoiseSettings, random: np.random.Generator, environment_steps: Callable[[], int]
) -> Exploration:
    """Makes the exploration that `config.exploration` names, clipped to the action range.

    Args:
      config: settings of the agent.
      random: generator of the noise.
      environment_steps: returns the environment steps that all actors have taken, roughly.

    Returns:
      A function from the policy's action to the action to take, both [A] float32.

    Raises:
      ConfigError: if there is no such exploration.
    """
    make = find_exploration(config)
    explore = make(config, random, environment_steps)
    return lambda action: np.clip(explore(action), -1.0, 1.0, dtype=np.float32)


def find_exploration(config: NoiseSettings) -> Callable[..., Exploration]:
    """Returns the function that `config.exploration` names.

    Raises:
      ConfigError: if there is none.
    """
    return find_part(config.exploration, EXPLORATIONS, "agent.exploration")
