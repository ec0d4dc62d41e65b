"""Environments with discrete actions."""

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

from environments.fakes import TargetMatching

ROWS, COLUMNS = 6, 5


class Catch(dm_env.Environment):
    """A ball falls through a board, [6, 5]; a paddle at its bottom moves left, stays, or right.

    The reward is 1 if the paddle is below the ball when it arrives there, otherwise -1.
    """

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)
        self._row = ROWS - 1

    def _board(self):
        board = np.zeros((ROWS, COLUMNS), np.float32)
        board[self._row, self._ball] = board[-1, self._paddle] = 1.0
        return board

    def reset(self):
        self._row, self._ball, self._paddle = 0, self._random.integers(COLUMNS), COLUMNS // 2
        return dm_env.restart(self._board())

    def step(self, action):
        if self._row == ROWS - 1:
            return self.reset()
        self._row += 1
        self._paddle = min(max(self._paddle + int(action) - 1, 0), COLUMNS - 1)
        if self._row < ROWS - 1:
            return dm_env.transition(0.0, self._board())
        return dm_env.termination(1.0 if self._paddle == self._ball else -1.0, self._board())

    def observation_spec(self):
        return specs.BoundedArray((ROWS, COLUMNS), np.float32, 0, 1, "board")

    def action_spec(self):
        return specs.DiscreteArray(3, name="move")

    def reward_spec(self):
        return specs.BoundedArray((), np.float64, -1.0, 1.0, "reward")


class DiscreteTarget(TargetMatching):
    """`TargetMatching` with nine actions, from -1 to 1; the highest expected return is 19.4."""

    def step(self, action):
        return super().step(np.array([int(action) / 4 - 1]))

    def action_spec(self):
        return specs.DiscreteArray(9)


class Buttons(gymnasium.Env):
    """Two dials of 2 and 3 positions, from 0 and from 5; episodes of eight steps.

    The reward is 1 if the first dial shows the observed number. A mask, if there is one, allows
    some of the six combinations, and those of the right number among them.

    Attributes:
      taken: every action it received.
      legal: the masks that it had shown before each.
      mask: the newest mask.
    """

    render_mode = None

    def __init__(self, seed: int, is_masked: bool = True):
        self.action_space = spaces.MultiDiscrete([2, 3], start=[0, 5])
        observations = {"action_mask": spaces.MultiBinary(6)} if is_masked else {}
        self.observation_space = spaces.Dict({**observations, "number": spaces.Box(0, 1, (1,))})
        self.taken, self.legal = [], []

    def _observe(self):
        self._number = self.np_random.integers(2)
        mask = self.np_random.integers(2, size=6).astype(np.int8)
        mask[3 * self._number + self.np_random.integers(3)] = 1
        if self._time == 8:
            mask[:] = 0
        self.mask = mask
        image = np.full((36, 36, 1), 255 * self._number, np.uint8)
        number = np.array([self._number], np.float32)
        observation = {"action_mask": mask, "image": image, "number": number}
        return {name: observation[name] for name in self.observation_space.spaces}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        if "action_mask" in self.observation_space.spaces:
            assert self.mask[3 * action[0] + action[1] - 5], "an illegal action"
        self.taken.append(action)
        self.legal.append(self.mask)
        self._time += 1
        reward = float(action[0] == self._number)
        return self._observe(), reward, self._time == 8, False, {}


class SeenButtons(Buttons):
    """`Buttons` that shows its number as the brightness of an image, too."""

    def __init__(self, seed: int):
        super().__init__(seed)
        image = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.observation_space = spaces.Dict({**self.observation_space.spaces, "image": image})


make_catch = Catch
make_target = DiscreteTarget
make_buttons = Buttons
make_seen_buttons = SeenButtons
