"""From the environment's observations to those of the agent."""

import collections
from typing import Protocol

import numpy as np


class ObservationHistory(Protocol):
    """Makes the agent's observation from those of the episode so far."""

    def reset(self) -> None:
        """Starts an episode."""
        ...

    def observe(self, observation: np.ndarray) -> np.ndarray:
        """Takes the environment's observation and returns the agent's."""
        ...


class LatestObservation:
    """The agent's observation is the environment's latest one."""

    def reset(self) -> None:
        """Does nothing."""

    def observe(self, observation: np.ndarray) -> np.ndarray:
        """Returns `observation`."""
        return observation


class FrameStack:
    """Stacks the latest frames; the first one of an episode fills the stack."""

    def __init__(self, size: int):
        """Makes an empty stack.

        Args:
          size: frames in an observation of the agent.
        """
        self._frames: collections.deque[np.ndarray] = collections.deque(maxlen=size)
        self._size = size

    def reset(self) -> None:
        """Starts an episode."""
        self._frames.clear()

    def observe(self, observation: np.ndarray) -> np.ndarray:
        """Adds a frame [H, W, C]; returns [H, W, C * size], the newest frame last."""
        missing = self._size - len(self._frames)
        self._frames.extend([observation] * (missing if missing == self._size else 1))
        return np.concatenate(self._frames, axis=-1)
