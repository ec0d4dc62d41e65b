"""An environment with named observations and an action range of its own."""

import dm_env
import numpy as np
from dm_env import specs


class Ranged(dm_env.Environment):
    """Random observations, episodes of three steps; the frame shows noise."""

    def __init__(self, seed):
        self._random = np.random.RandomState(seed)
        self._time = 3

    def _observe(self):
        return {
            "arm": self._random.standard_normal((2, 2)),
            "height": np.float64(self._random.uniform()),
        }

    def reset(self):
        self._time = 0
        return dm_env.restart(self._observe())

    def step(self, action):
        self._time += 1
        make = dm_env.truncation if self._time == 3 else dm_env.transition
        return make(0.5, self._observe())

    def observation_spec(self):
        return {"arm": specs.Array((2, 2), float), "height": specs.Array((), float)}

    def action_spec(self):
        return specs.BoundedArray((1, 2), np.float64, [[-3.0, 0.0]], [[5.0, 0.25]])

    def reward_spec(self):
        return specs.BoundedArray((), float, 0.0, 1.0)

    def render(self, height, width, camera_id):
        return self._random.randint(0, 256, (height, width, 3)).astype(np.uint8)


make = Ranged


class _Pictures(Ranged):
    """Its observation is a picture."""

    def _observe(self):
        return self.render(8, 8, 0)

    def observation_spec(self):
        return specs.Array((8, 8, 3), np.uint8)


pictures = _Pictures


class _Scalar(Ranged):
    """Its observations and actions are single numbers, not arrays."""

    def _observe(self):
        return np.float64(self._random.uniform())

    def observation_spec(self):
        return specs.Array((), float)

    def action_spec(self):
        return specs.BoundedArray((), np.float64, -3.0, 5.0)


scalar = _Scalar


class Changed(dm_env.Environment):
    """Halves actions and multiplies observations by ten; the specs stay the same."""

    def __init__(self, environment):
        self._environment = environment

    def reset(self):
        return self._change(self._environment.reset())

    def step(self, action):
        return self._change(self._environment.step(np.float32(0.5) * action))

    def _change(self, timestep):
        return timestep._replace(observation=np.float32(10) * timestep.observation)

    def observation_spec(self):
        return self._environment.observation_spec()

    def action_spec(self):
        return self._environment.action_spec()

    def reward_spec(self):
        return self._environment.reward_spec()
