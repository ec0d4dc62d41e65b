"""A sum tree: draws slots in proportion to their weights in logarithmic time."""

import numpy as np


class PriorityTree:
    """Weights of slots in the leaves of a binary tree whose nodes hold the sum of their children.

    The sums depend only on the current weights, not on the order in which they were set, so a tree
    with the same weights draws the same slots.
    """

    def __init__(self, capacity: int):
        """Makes a tree of zeros.

        Args:
          capacity: number of slots, at least 1.
        """
        self._num_leaves = 1 << (capacity - 1).bit_length()
        self._sums = np.zeros(2 * self._num_leaves)  # Node i has the children 2 i and 2 i + 1.

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._sums[1])

    def set(self, slots: np.ndarray, weights: np.ndarray) -> None:
        """Sets weights; if a slot occurs more than once, its last weight counts.

        Args:
          slots: [N] integers.
          weights: [N] not negative.
        """
        nodes = np.asarray(slots) + self._num_leaves
        self._sums[nodes] = weights
        while nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def get(self, slots: np.ndarray) -> np.ndarray:
        """Returns the weights of slots: [N] integers -> [N] float64."""
        return self._sums[np.asarray(slots) + self._num_leaves]

    def find(self, masses: np.ndarray) -> np.ndarray:
        """Finds the slots at which the cumulative weight passes the given masses.

        Args:
          masses: [N] in [0, total).

        Returns:
          [N] int64 slots, all with a positive weight.
        """
        nodes, masses = np.ones(len(masses), np.int64), np.array(masses, np.float64)
        for _ in range(self._num_leaves.bit_length() - 1):
            left, right = self._sums[2 * nodes], self._sums[2 * nodes + 1]
            # Rounding may leave a mass for a right child without weight.
            goes_right = (masses >= left) & (right > 0)
            masses -= np.where(goes_right, left, 0.0)
            nodes = 2 * nodes + goes_right
        return nodes - self._num_leaves
