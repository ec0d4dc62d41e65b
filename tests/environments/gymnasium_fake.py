"""A Gymnasium environment of seven steps, with nested observations and asymmetric action bounds."""

import gymnasium
import numpy as np


class Seven(gymnasium.Env):
    """Terminates at step 7 if `terminates`, otherwise is truncated there. Reward 1.5 a step.

    Attributes:
      actions: every action it received.
    """

    def __init__(self, terminates: bool, render_mode: str | None = "rgb_array"):
        self.observation_space = gymnasium.spaces.Dict(
            {
                "noise": gymnasium.spaces.Box(-1, 1, (2, 2), np.float64),
                "clock": gymnasium.spaces.Box(0, 1, (), np.float32),
            }
        )
        low, high = np.array([-2, 0], np.float32), np.array([2, 4], np.float32)
        self.action_space = gymnasium.spaces.Box(low, high)
        self.render_mode = render_mode
        self.actions: list[np.ndarray] = []
        self._terminates = terminates
        self._time = 0

    def _observe(self):
        return {"clock": np.float32(self._time / 7), "noise": self.np_random.uniform(-1, 1, (2, 2))}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = 0
        return self._observe(), {}

    def step(self, action):
        self.actions.append(action)
        self._time += 1
        over = self._time == 7
        return self._observe(), 1.5, over and self._terminates, over and not self._terminates, {}

    def render(self):
        return np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)


def make(seed: int) -> Seven:
    """Terminates for even seeds."""
    return Seven(terminates=seed % 2 == 0)


class Ruined(gymnasium.Env):
    """Cannot be made, with a render mode or without."""

    def __init__(self, render_mode: str | None = None):
        raise ValueError("no data file\nfound")


class Undrawn(Seven):
    """Needs a package for rendering that is not installed."""

    def render(self):
        raise gymnasium.error.DependencyNotInstalled(
            'pygame is not installed, run `pip install "gymnasium[classic_control]"`'
        )


def make_undrawn(seed: int) -> Undrawn:
    return Undrawn(terminates=False)


def make_windowed(seed: int) -> Seven:
    return Seven(terminates=False, render_mode=None)


def make_spaceless(seed: int) -> gymnasium.Env:
    environment = Seven(terminates=True)
    del environment.observation_space
    return environment


def make_without_seed() -> gymnasium.Env:
    return Seven(terminates=True)


class OwnGenerator(Seven):
    """Draws from a generator of its own, which a reset with a seed creates."""

    _random: np.random.Generator

    def _observe(self):
        return {"clock": np.float32(0), "noise": self._random.uniform(-1, 1, (2, 2))}

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._random = np.random.default_rng(seed)
        return super().reset(seed=seed)


def make_own_generator(seed: int) -> OwnGenerator:
    return OwnGenerator(terminates=True)
