"""Steps several environments of one task: one after the other, or in an EnvPool pool.

EnvPool steps tasks of the dm_control suite in C++ threads.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import dm_env
import numpy as np

from environments import suite
from environments.errors import EnvironmentUsageError
from environments.flat.timesteps import TimeStepConverter

# The version whose tasks were compared with those of dm_control.
ENVPOOL_VERSION = "1.2.5"
# Tasks that could not be compared with those of dm_control: their observations do not determine the
# state, so an error in them would go unnoticed.
NOT_COMPARED = frozenset(
    {
        *("dog:fetch", "dog:run", "dog:stand", "dog:trot", "dog:walk"),
        *("quadruped:escape", "quadruped:fetch", "quadruped:run", "quadruped:walk"),
        "fish:swim",
    }
)
_STEP_TYPES = tuple(dm_env.StepType)


class BatchEnvironment(Protocol):
    """Environments of one task that are stepped together.

    Their time steps are those of `environments.flat.Environment`. `reset` and `step` return them in
    the order of the environments, as a list or lazily: if the caller stops iterating, the remaining
    environments may not be stepped.
    """

    @property
    def size(self) -> int:
        """Number of environments."""
        ...

    def reset(self, indices: Sequence[int]) -> Iterable[dm_env.TimeStep]:
        """Starts an episode in each of the environments `indices`.

        Args:
          indices: in increasing order.

        Returns:
          Their first time steps.
        """
        ...

    def step(self, actions: Sequence[np.ndarray]) -> Iterable[dm_env.TimeStep]:
        """Takes a step in each environment.

        Args:
          actions: one for each, in the agents' form. No environment may be at the end of an
            episode.

        Returns:
          The next time step of each environment.
        """
        ...

    def close(self) -> None:
        """Frees the environments' resources. They must not be used afterwards."""
        ...


class EnvironmentsInTurn:
    """Environments that the calling thread steps one after the other.

    It implements `BatchEnvironment`, lazily: an environment is stepped when its time step is read.
    """

    def __init__(self, environments: Sequence[Any]):
        """Stores the environments, all of one task; see `environments.make`."""
        self._environments = environments

    @property
    def size(self) -> int:
        """See `BatchEnvironment`."""
        return len(self._environments)

    def reset(self, indices: Sequence[int]) -> Iterator[dm_env.TimeStep]:
        """See `BatchEnvironment`."""
        for index in indices:
            yield self._environments[index].reset()

    def step(self, actions: Sequence[np.ndarray]) -> Iterator[dm_env.TimeStep]:
        """See `BatchEnvironment`."""
        for environment, action in zip(self._environments, actions, strict=True):
            yield environment.step(action)

    def close(self) -> None:
        """See `BatchEnvironment`."""
        for environment in self._environments:
            environment.close()


class EnvPoolEnvironments:
    """Environments of one task that a pool of threads steps at the same time.

    It implements `BatchEnvironment`. Observations, actions and rewards
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
        check_envpool(name)
        domain, _, task = name.partition(":")
        self._task = suite.make(domain, task, seed=0)  # Only for its specs.
        spec = self._task.wrapped.observation_spec()
        self._names = list(spec)
        reward_spec = self._task.reward_spec()
        self._converters = [TimeStepConverter(name, spec, reward_spec) for _ in seeds]
        self._pool = envpool().make_dm(
            envpool_name(name),
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
        real = self._task.actions.to_own(np.stack(actions))
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


def envpool() -> Any:
    """Imports EnvPool, which loads an OpenGL library of its own.

    Raises:
      EnvironmentUsageError: if it is not installed, or its version differs.
    """
    _check_version()
    import envpool

    return envpool


def check_envpool(name: str) -> None:
    """Refuses a task that was not compared with dm_control's.

    It does not import EnvPool, because a process that has loaded an OpenGL library must not fork.

    Args:
      name: the name of an environment.

    Raises:
      EnvironmentUsageError: if the task is refused, or EnvPool is not installed.
    """
    expected = "expected a task of the dm_control suite for --env-engine envpool"
    if name not in suite.names():
        raise EnvironmentUsageError(f"{expected}, got {name!r}; leave --env-engine out")
    if name in NOT_COMPARED:
        raise EnvironmentUsageError(
            f"{expected} that is known to be the same in EnvPool, got {name!r}, which could not be "
            "compared; leave --env-engine out"
        )
    _check_version()


def _check_version() -> None:
    try:
        found = f"version {importlib.metadata.version('envpool')}"
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != f"version {ENVPOOL_VERSION}":
        raise EnvironmentUsageError(
            f"expected EnvPool {ENVPOOL_VERSION} for --env-engine envpool, found {found}; install "
            "it: pip install 'rl-replicator[envpool]'"
        )


def envpool_name(name: str) -> str:
    """Returns EnvPool's name of a task: `BallInCupCatch-v1` for `ball_in_cup:catch`."""
    words = name.replace(":", "_").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + "-v1"
