"""A limit on the steps of an episode."""

from typing import Any

import dm_env


class TimeLimit(dm_env.Environment):
    """Truncates episodes after a number of steps.

    Episodes that end earlier are unchanged.
    """

    def __init__(self, environment: dm_env.Environment, limit: int):
        """Wraps an environment.

        Args:
          environment: any environment.
          limit: maximum number of steps of an episode, at least 1.
        """
        self._environment = environment
        self._limit = limit
        self._over = True
        self._time = 0

    def reset(self) -> dm_env.TimeStep:
        self._time, self._over = 0, False
        return self._environment.reset()

    def step(self, action: Any) -> dm_env.TimeStep:
        """Takes a step; after a last one it starts a new episode."""
        if self._over:
            return self.reset()
        timestep = self._environment.step(action)
        self._time += 1
        if self._time == self._limit and not timestep.last():
            timestep = timestep._replace(step_type=dm_env.StepType.LAST)
        self._over = timestep.last()
        return timestep

    def observation_spec(self) -> Any:
        return self._environment.observation_spec()

    def action_spec(self) -> Any:
        return self._environment.action_spec()

    def reward_spec(self) -> Any:
        return self._environment.reward_spec()

    def discount_spec(self) -> Any:
        return self._environment.discount_spec()

    def close(self) -> None:
        self._environment.close()
