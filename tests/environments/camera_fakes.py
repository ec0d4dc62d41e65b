"""Environments of a camera and two joints, one of which shows what to do."""

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE, LENGTH = 24, 20


class Robot(gymnasium.Env):
    """The best action is a number in [-1, 1] that one of its sensors shows; the other shows noise.

    The camera shows a number as a grey bar from the left edge (-1). A joint is the number itself,
    and the other one, five times another number, does not matter. Each step has other numbers; the
    reward is `1 - |action - number| / 2`.
    """

    render_mode = "rgb_array"

    def __init__(self, seed, shows):
        self._random, self._shows = np.random.default_rng(seed), shows
        joints = {"elbow": spaces.Box(-1, 1, (1,)), "wrist": spaces.Box(-5, 5, (1,))}
        camera = spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
        self.observation_space = spaces.Dict({"camera": camera, "joints": spaces.Dict(joints)})
        self.action_space = spaces.Box(-1, 1, (1,))

    def _observe(self):
        self._target, noise, other = self._random.uniform(-1, 1, 3)
        numbers = {"camera": noise, "elbow": noise, self._shows: self._target}
        self._bar = np.zeros((SIZE, SIZE), np.uint8)
        self._bar[:, : round((numbers["camera"] + 1) / 2 * SIZE)] = 255
        joints = {"elbow": np.full(1, numbers["elbow"]), "wrist": np.full(1, 5 * other)}
        return {"camera": self._bar, "joints": joints}

    def reset(self, *, seed=None, options=None):
        self._time = 0
        return self._observe(), {}

    def step(self, action):
        reward = 1 - abs(float(action[0]) - self._target) / 2
        self._time += 1
        return self._observe(), reward, False, self._time == LENGTH, {}

    def render(self):
        return np.repeat(self._bar[..., None], 3, -1)


def camera(seed):
    return Robot(seed, "camera")


def elbow(seed):
    return Robot(seed, "elbow")
