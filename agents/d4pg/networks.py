"""The distributional critic of D4PG."""

from collections.abc import Callable

import numpy as np
import sonnet as snt
import tensorflow as tf

from agents.networks.mlp import CriticTorso

# How much the initial logits fall from atom to atom, away from a return of 0: steep enough for a
# mean near 0, and flat enough that every atom stays within reach.
_PRIOR_SLOPE = 0.2


def logits_around_zero(atoms: np.ndarray) -> np.ndarray:
    """Logits of a distribution over returns whose mode is the atom nearest to a return of 0.

    A critic that starts in the middle of a one-sided value range takes thousands of steps to come
    down. Until then, the policy follows a critic that has learned only that everything gets worse,
    and saturates: on reacher:hard it never recovered. DrQ-v2's scalar critic also starts near 0.

    Args:
      atoms: [Z] float32, evenly spaced.

    Returns:
      [Z] float32, the largest 0.
    """
    distances = np.abs(atoms)
    return -_PRIOR_SLOPE * (distances - distances.min()) / (atoms[1] - atoms[0])


class CategoricalCritic(snt.Module):
    """Distribution of the return: ([B, N] features, [B, A] actions) -> [B, Z] logits."""

    def __init__(
        self,
        make_torso: Callable[[], CriticTorso],
        initial_logits: np.ndarray,
        name: str = "critic",
    ):
        """Makes the layers.

        Args:
          make_torso: makes all but the last layer.
          initial_logits: [Z] float32, initial bias of the last layer.
          name: name of the module.
        """
        super().__init__(name=name)
        self._torso = make_torso()
        self._head = snt.Linear(
            len(initial_logits),
            w_init=snt.initializers.VarianceScaling(1e-2),
            b_init=lambda shape, dtype: tf.constant(initial_logits, dtype, shape),
            name="head",
        )

    def __call__(self, features: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """([B, N] float32, [B, A] float32) -> [B, Z] float32."""
        return self._head(self._torso(features, action))
