"""Small environments with known returns, for tests.

They are made by name: `environments.make("environments.fakes:chain", seed=0)`.
"""

from __future__ import annotations

from collections.abc import Sequence

import dm_env
import numpy as np
from dm_env import specs


class Chain(dm_env.Environment):
    """Episodes of fixed length with given rewards, whatever the actions are.

    At time t (0 at the reset), the observation is [t / length, last action]. The step to time t has
    reward `rewards[t - 1]`, and the last step has discount `terminal_discount`. The discounted
    return from the start is `sum(gamma**i * rewards[i])`.
    """

    def __init__(self, rewards: Sequence[float] = (1.0,) * 10, terminal_discount: float = 0.0):
        """Makes the environment.

        Args:
          rewards: reward of each step of an episode.
          terminal_discount: discount of the last step: 0 for a termination, 1 for a truncation.

        Raises:
          ValueError: if there is no reward.
        """
        if not rewards:
            raise ValueError("expected at least one reward, got none")
        self._rewards = tuple(float(reward) for reward in rewards)
        self._terminal_discount = terminal_discount
        self._time = len(self._rewards)

    def reset(self) -> dm_env.TimeStep:
        self._time = 0
        return dm_env.restart(np.zeros(2, np.float32))

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        length = len(self._rewards)
        if self._time == length:
            return self.reset()
        self._time += 1
        observation = np.array([self._time / length, np.ravel(action)[0]], np.float32)
        reward = self._rewards[self._time - 1]
        if self._time < length:
            return dm_env.transition(reward, observation)
        return dm_env.TimeStep(dm_env.StepType.LAST, reward, self._terminal_discount, observation)

    def observation_spec(self) -> specs.Array:
        return specs.Array((2,), np.float32, name="observation")

    def action_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((1,), np.float32, -1.0, 1.0, name="action")

    def reward_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray(
            (), np.float64, min(self._rewards), max(self._rewards), name="reward"
        )


class TargetMatching(dm_env.Environment):
    """An environment whose best action is the number that it shows; learnable within seconds.

    The observation is [target, remaining share of the episode]. Each step draws a new target
    uniformly from [-1, 1]. The reward is `1 - |action - target| / 2`, in [0, 1]. The highest return
    is `length`. The expected return of a constant action 0 is 0.75 * `length`, and that of random
    actions 2/3 * `length`. Episodes end by time limit, with discount 1.
    """

    def __init__(self, seed: int = 0, length: int = 20):
        """Makes the environment.

        Args:
          seed: seed of the targets.
          length: number of steps of an episode.
        """
        self._random = np.random.RandomState(seed)
        self._length = length
        self._time = length
        self._target = 0.0

    def _observe(self) -> np.ndarray:
        self._target = self._random.uniform(-1, 1)
        return np.array([self._target, 1 - self._time / self._length], np.float32)

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

    def observation_spec(self) -> specs.Array:
        return specs.Array((2,), np.float32, name="observation")

    def action_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((1,), np.float32, -1.0, 1.0, name="action")

    def reward_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((), np.float64, 0.0, 1.0, name="reward")

    def render(self, height: int, width: int, camera_id: int | str) -> np.ndarray:
        """Renders the target as a white bar; needs no OpenGL.

        Args:
          height: height of the image in pixels.
          width: width of the image in pixels.
          camera_id: ignored.

        Returns:
          [height, width, 3] uint8: black, with white from the left edge (-1) to the target (1 is
          the right edge).
        """
        del camera_id
        frame = np.zeros((height, width, 3), np.uint8)
        frame[:, : round((self._target + 1) / 2 * width)] = 255
        return frame


def chain(seed: int, length: int = 10, terminal_discount: float = 0.0) -> Chain:
    """Makes episodes of `length` steps with reward 1 that end with a termination.

    Args:
      seed: ignored.
      length: number of steps of an episode.
      terminal_discount: see `Chain`.
    """
    del seed
    return Chain((1.0,) * length, terminal_discount)


def truncated_chain(seed: int, length: int = 10) -> Chain:
    """Makes episodes of `length` steps with reward 1 that end with a truncation.

    Args:
      seed: ignored.
      length: number of steps of an episode.
    """
    return chain(seed, length, terminal_discount=1.0)


def target(seed: int, length: int = 20) -> TargetMatching:
    """Makes a `TargetMatching`; see its constructor for the arguments."""
    return TargetMatching(seed, length)
