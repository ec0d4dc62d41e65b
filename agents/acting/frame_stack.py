"""What an actor remembers of an episode, to act on."""

import collections
from typing import Protocol

import numpy as np


class Memory(Protocol):
    """What an actor makes of the environment's observations, one after the other."""

    def begin(self) -> None:
        """A new episode starts."""
        ...

    def observe(self, observation: np.ndarray) -> np.ndarray:
        """The environment's observation -> the agent's."""
        ...


class Present:
    """The observation is all there is to know."""

    def begin(self) -> None:
        """Nothing."""

    def observe(self, observation: np.ndarray) -> np.ndarray:
        """As it is."""
        return observation


class FrameStack:
    """The last frames in one array; at the start of an episode the first one several times."""

    def __init__(self, size: int):
        """Args:
        size: frames.
        """
        self._frames: collections.deque[np.ndarray] = collections.deque(maxlen=size)
        self._size = size

    def begin(self) -> None:
        """Forgets the episode before."""
        self._frames.clear()

    def observe(self, observation: np.ndarray) -> np.ndarray:
        """[H, W, C] -> [H, W, C * size], the newest frame last."""
        missing = self._size - len(self._frames)
        self._frames.extend([observation] * (missing if missing == self._size else 1))
        return np.concatenate(self._frames, axis=-1)
