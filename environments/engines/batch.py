"""Several environments of one task, which are stepped together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import dm_env
import numpy as np


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
          actions: one for each, [A] float32 in [-1, 1]. No environment may be at the end of an
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
