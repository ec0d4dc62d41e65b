"""Small environments whose returns are known on paper, for tests. All are named like factories:
`environments.make("environments.fakes:chain", seed=0)`."""

from __future__ import annotations

from collections.abc import Sequence

import dm_env
import numpy as np
from dm_env import specs


class Chain(dm_env.Environment):
    """Episodes of fixed length with given rewards, whatever the actions.

    At time t (0 at the reset) the observation is [t / length, last action]. The step that leads to
    time t has reward `rewards[t - 1]`; the last one has discount `terminal_discount`: 0 is a
    termination, 1 a truncation. The discounted return from the start is
    `sum(gamma**i * rewards[i])`.
    """

    def __init__(self, rewards: Sequence[float] = (1.0,) * 10, terminal_discount: float = 0.0):
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


class Target(dm_env.Environment):
    """An episode asks `length` times for the number that it shows; learnable within seconds.

    The observation is [target, share of the episode left]; the target is drawn anew at every step,
    uniformly from [-1, 1]. The reward is `1 - |action - target| / 2`, in [0, 1]. The best return is
    `length`, that of a constant action 0 is 0.75 * `length` in expectation, and that of random
    actions 2/3 * `length`. Episodes end by time limit (discount 1).
    """

    def __init__(self, seed: int = 0, length: int = 20):
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
        """White from the left edge to the target, which is -1 there and 1 at the right edge; black
        beyond. Needs no OpenGL."""
        del camera_id
        frame = np.zeros((height, width, 3), np.uint8)
        frame[:, : round((self._target + 1) / 2 * width)] = 255
        return frame


def chain(seed: int, length: int = 10, terminal_discount: float = 0.0) -> Chain:
    """`length` steps of reward 1, then a termination; the same for every seed."""
    del seed
    return Chain((1.0,) * length, terminal_discount)


def truncated_chain(seed: int, length: int = 10) -> Chain:
    """`length` steps of reward 1, then a truncation."""
    return chain(seed, length, terminal_discount=1.0)


def target(seed: int, length: int = 20) -> Target:
    return Target(seed, length)
