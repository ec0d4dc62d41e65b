"""Weights as arrays by path, and their part of a checkpoint. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

# Name under which a learner's `get_variables` serves the number of steps of its weights.
LEARNER_STEPS = "learner_steps"
# Name that requests this number and all networks together, so that they are of one step.
EVERYTHING = "everything"

_WEIGHTS = "weights.npz"


class NoSuchNetworkError(KeyError):
    """There are no weights of a network."""


class WeightsPart:
    """Weights inside a checkpoint, readable without the learner that wrote them.

    Once restored, it is a `VariableSource` for actors.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray] | None = None):
        """Stores the weights.

        Args:
          arrays: weights by path; None before a restore.
        """
        self._arrays = dict(arrays or {})

    def save(self, folder: Path) -> None:
        """Writes the weights."""
        np.savez(folder / _WEIGHTS, **self._arrays)

    def capture(self) -> "WeightsPart":
        """Returns this object: the arrays do not change."""
        return self

    def restore(self, folder: Path) -> None:
        """Reads the weights."""
        with np.load(folder / _WEIGHTS) as file:
            self._arrays = dict(file)

    def get_variables(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns the variables of the named networks, by path."""
        return select(self._arrays, names)


def select(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the arrays that belong to the named networks.

    Args:
      arrays: path -> array.
      names: names of networks; `EVERYTHING` is all of them.

    Raises:
      NoSuchNetworkError: if a network has no array.
    """
    if EVERYTHING in names:
        return dict(arrays)
    networks = {path.split("/", 1)[0] for path in arrays}
    if not set(names) <= networks:
        raise NoSuchNetworkError(f"expected names among {sorted(networks)}, got {list(names)}")
    return {path: array for path, array in arrays.items() if path.split("/", 1)[0] in names}
