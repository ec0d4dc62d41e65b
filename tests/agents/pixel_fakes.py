"""Environments of pictures for tests: `tests.agents.pixel_fakes:dot` is learnable in seconds."""

import dm_env
import numpy as np
from dm_env import specs

SIZE = 16


class Dot(dm_env.Environment):
    """A dot on a line shows the action to take; the reward is 1 less half the distance to it.

    The best return is `length`; a constant action has 0.75 of it in expectation.
    """

    def __init__(self, seed: int, length: int = 20):
        self._random = np.random.RandomState(seed)
        self._length = length
        self._time = length
        self._target = 0.0

    def _observe(self) -> np.ndarray:
        self._target = self._random.uniform(-1, 1)
        frame = np.zeros((SIZE, SIZE, 3), np.uint8)
        place = round((self._target + 1) / 2 * (SIZE - 4))
        frame[6:10, place : place + 4] = 255
        return frame

    def reset(self) -> dm_env.TimeStep:
        self._time = 0
        return dm_env.restart(self._observe())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        if self._time == self._length:
            return self.reset()
        self._time += 1
        reward = 1 - abs(float(np.ravel(action)[0]) - self._target) / 2
        if self._time < self._length:
            return dm_env.transition(reward, self._observe())
        return dm_env.truncation(reward, self._observe())

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((SIZE, SIZE, 3), np.uint8, 0, 255, name="pixels")

    def action_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((1,), np.float32, -1.0, 1.0, name="action")

    def reward_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((), np.float64, 0.0, 1.0, name="reward")
