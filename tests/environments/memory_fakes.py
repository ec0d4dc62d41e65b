"""Environments whose first observation alone shows which action is right in the whole episode."""

import dm_env
import numpy as np
from dm_env import specs

LENGTH = 5


class DiscreteRecall(dm_env.Environment):
    """The cue is -1 or 1, and shown at the first step only; the rewards are for the later steps.

    The observation is [cue, share of the episode]. From the second action on, the reward is 1 if
    the action, 0 or 1, is that of the cue: the highest return is 4, that of every policy without a
    memory 2.
    """

    def __init__(self, seed: int = 0):
        self._random = np.random.RandomState(seed)
        self._time = LENGTH

    def reset(self):
        self._time, self._cue = 0, self._random.choice([-1.0, 1.0])
        return dm_env.restart(np.array([self._cue, 0.0], np.float32))

    def step(self, action):
        if self._time == LENGTH:
            return self.reset()
        self._time += 1
        reward = float(self._time > 1 and 2.0 * int(action) - 1.0 == self._cue)
        observation = np.array([0.0, self._time / LENGTH], np.float32)
        if self._time < LENGTH:
            return dm_env.transition(reward, observation)
        return dm_env.termination(reward, observation)

    def observation_spec(self):
        return specs.Array((2,), np.float32, "observation")

    def action_spec(self):
        return specs.DiscreteArray(2)

    def reward_spec(self):
        return specs.BoundedArray((), np.float64, 0.0, 1.0, "reward")


make_discrete_recall = DiscreteRecall
