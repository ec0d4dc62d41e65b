"""reacher from what its frames show, known to a given precision.

    rl-replicator train d4pg --env reacher:easy --wrap bench.reacher_positions:exact

Wrappers that replace the state, which has the vector from the finger to the target, by the
positions of elbow, finger and target in the last three frames, as a pixel agent stacks them.
"""

from collections import deque

import dm_env
import numpy as np
from dm_env import specs

_FRAMES, _LENGTH = 3, 0.12  # Of each of the arm's two parts, in metres.
_FEATURES = 64


class Positions(dm_env.Environment):
    """Observes positions in units of 0.25 m."""

    def __init__(self, environment: dm_env.Environment, error: float):
        """Wraps reacher.

        Args:
          environment: reacher from state: angles, the vector to the target, velocities.
          error: standard deviation, in metres, of an error that depends smoothly on the positions,
            as that of an encoder does.
        """
        self._environment, self._error = environment, error
        self._seen: deque[np.ndarray] = deque(maxlen=_FRAMES)
        random = np.random.RandomState(3)
        self._frequencies = random.randn(6, _FEATURES) / _LENGTH
        self._phases = random.uniform(0, 2 * np.pi, _FEATURES)
        self._amplitudes = random.randn(_FEATURES, 6) * np.sqrt(2 / _FEATURES)

    def reset(self) -> dm_env.TimeStep:
        timestep = self._environment.reset()
        self._seen.extend([self._positions(timestep)] * _FRAMES)
        return self._observed(timestep)

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        timestep = self._environment.step(action)
        self._seen.append(self._positions(timestep))
        return self._observed(timestep)

    def observation_spec(self) -> specs.Array:
        return specs.Array((6 * _FRAMES,), np.float32, "positions")

    def action_spec(self) -> specs.BoundedArray:
        return self._environment.action_spec()

    def reward_spec(self) -> specs.Array:
        return self._environment.reward_spec()

    def _positions(self, timestep: dm_env.TimeStep) -> np.ndarray:
        shoulder, wrist, *to_target = timestep.observation[:4]
        angles = np.array([shoulder, shoulder + wrist])
        elbow, forearm = _LENGTH * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        finger = elbow + forearm
        exact = np.concatenate([elbow, finger, finger + to_target])
        error = np.cos(exact @ self._frequencies + self._phases) @ self._amplitudes
        return (4 * (exact + self._error * error)).astype(np.float32)

    def _observed(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        return timestep._replace(observation=np.concatenate(list(self._seen)))


def exact(environment: dm_env.Environment) -> Positions:
    """The last three positions."""
    return Positions(environment, 0)


def off_by_3_cm(environment: dm_env.Environment) -> Positions:
    """The last three positions, with an error of 3 cm."""
    return Positions(environment, 0.03)


def off_by_5_cm(environment: dm_env.Environment) -> Positions:
    """The last three positions, with an error of 5 cm."""
    return Positions(environment, 0.05)
