"""An environment of a camera and two joints, of which two show what to do."""

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE, LENGTH = 24, 20


class Robot(gymnasium.Env):
    """The best action is the number in [-1, 1] that the camera shows, and that of the elbow.

    The camera shows a number as a grey bar from the left edge (-1). The elbow is the other number
    itself, and the wrist, five times a third one, does not matter. Each step has other numbers; the
    reward is `1 - the mean of |action - number| / 2`.
    """

    render_mode = "rgb_array"

    def __init__(self, seed):
        self._random = np.random.default_rng(seed)
        joints = {"elbow": spaces.Box(-1, 1, (1,)), "wrist": spaces.Box(-5, 5, (1,))}
        camera = spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
        self.observation_space = spaces.Dict({"camera": camera, "joints": spaces.Dict(joints)})
        self.action_space = spaces.Box(-1, 1, (2,))

    def _observe(self):
        *self._targets, other = self._random.uniform(-1, 1, 3)
        self._bar = np.zeros((SIZE, SIZE), np.uint8)
        self._bar[:, : round((self._targets[0] + 1) / 2 * SIZE)] = 255
        joints = {"elbow": np.full(1, self._targets[1]), "wrist": np.full(1, 5 * other)}
        return {"camera": self._bar, "joints": joints}

    def reset(self, *, seed=None, options=None):
        self._time = 0
        return self._observe(), {}

    def step(self, action):
        reward = 1 - np.abs(action - self._targets).mean() / 2
        self._time += 1
        return self._observe(), float(reward), False, self._time == LENGTH, {}

    def render(self):
        return np.repeat(self._bar[..., None], 3, -1)


robot = Robot
