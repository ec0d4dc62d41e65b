"""Tasks of the dm_control suite in an EnvPool pool, which steps them in C++ threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dm_env
import numpy as np

from environments import suite
from environments.engines import envpool_tasks
from environments.timesteps import TimeStepConverter

_STEP_TYPES = tuple(dm_env.StepType)


class EnvPoolEnvironments:
    """Environments of one task that a pool of threads steps at the same time.

    It implements `environments.engines.batch.BatchEnvironment`. Observations, actions and rewards
    are converted and checked as those of dm_control's own environment. EnvPool resets an
    environment at the step after its last one; this step does not occur here, because the caller
    resets first.
    """

    def __init__(self, name: str, seeds: Sequence[int], num_threads: int):
        """Starts the threads.

        Args:
          name: `domain:task` of the dm_control suite.
          seeds: the seed of each environment, from 0 to 2**32 - 1.
          num_threads: number of threads, limited to the number of environments.

        Raises:
          EnvironmentUsageError: if EnvPool is not installed, or the task is not supported.
        """
        envpool_tasks.check(name)
        domain, _, task = name.partition(":")
        self._task = suite.make(domain, task, seed=0)  # Only for its specs.
        spec = self._task.wrapped.observation_spec()
        self._names = list(spec)
        reward_spec = self._task.reward_spec()
        self._converters = [TimeStepConverter(name, spec, reward_spec) for _ in seeds]
        self._pool = envpool_tasks.imported().make_dm(
            envpool_tasks.identifier(name),
            num_envs=len(seeds),
            num_threads=min(num_threads, len(seeds)),
            seed=np.array(seeds, np.uint32).view(np.int32),
        )

    @property
    def size(self) -> int:
        """See `BatchEnvironment`."""
        return len(self._converters)

    def reset(self, indices: Sequence[int]) -> list[dm_env.TimeStep]:
        """See `BatchEnvironment`."""
        batch = self._pool.reset(np.array(indices, np.int32))
        return self._converted(indices, batch, TimeStepConverter.begin)

    def step(self, actions: Sequence[np.ndarray]) -> list[dm_env.TimeStep]:
        """See `BatchEnvironment`."""
        real = self._task.own_actions(np.stack(actions))
        return self._converted(range(self.size), self._pool.step(real), TimeStepConverter.convert)

    def close(self) -> None:
        """Does nothing: the threads end when the pool is freed."""

    def _converted(
        self,
        indices: Sequence[int],
        batch: Any,
        convert: Callable[[TimeStepConverter, dm_env.TimeStep], dm_env.TimeStep],
    ) -> list[dm_env.TimeStep]:
        """Converts a batch of the pool, with a row for each of `indices`, to time steps."""
        step_types, rewards, discounts = (
            array.tolist() for array in (batch.step_type, batch.reward, batch.discount)
        )
        arrays = [(name, getattr(batch.observation, name)) for name in self._names]
        timesteps = []
        for row, index in enumerate(indices):
            timestep = dm_env.TimeStep(
                _STEP_TYPES[step_types[row]],
                rewards[row],
                discounts[row],
                {name: array[row] for name, array in arrays},
            )
            timesteps.append(convert(self._converters[index], timestep))
        return timesteps
