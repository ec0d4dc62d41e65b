"""From the environment's observations to those of the agent."""

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
        self._size = size
        self._stack: np.ndarray | None = None

    def reset(self) -> None:
        """Starts an episode."""
        self._stack = None

    def observe(self, observation: np.ndarray) -> np.ndarray:
        """Adds a frame [H, W, C]; returns [H, W, C * size], the newest frame last.

        The frame is copied, because cameras reuse their buffer. The returned array is new, but the
        next call reads it.
        """
        if self._stack is None:
            frames = [observation] * self._size
        else:
            frames = [self._stack[..., observation.shape[-1] :], observation]
        self._stack = np.concatenate(frames, axis=-1)
        return self._stack
