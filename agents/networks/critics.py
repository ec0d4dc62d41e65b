"""Critics that predict the expected return."""

from collections.abc import Callable

import sonnet as snt
import tensorflow as tf

from agents.networks.mlp import CriticTorso


class ScalarCritic(snt.Module):
    """Expected return: ([B, N] features, [B, A] actions) -> [B] float32."""

    def __init__(self, make_torso: Callable[[], CriticTorso], name: str = "critic"):
        """Makes the layers.

        Args:
          make_torso: makes all but the last layer.
          name: name of the module.
        """
        super().__init__(name=name)
        self._torso = make_torso()
        self._head = snt.Linear(1, w_init=snt.initializers.VarianceScaling(1e-2), name="head")

    def __call__(self, features: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """([B, N] float32, [B, A] float32) -> [B] float32."""
        return tf.squeeze(self._head(self._torso(features, action)), axis=-1)


class TwinCritic(snt.Module):
    """Two independent critics: ([B, N] features, [B, A] actions) -> [B, 2] float32."""

    def __init__(self, make_torso: Callable[[], CriticTorso], name: str = "critic"):
        """Makes both critics.

        Args:
          make_torso: makes a critic except for its last layer.
          name: name of the module.
        """
        super().__init__(name=name)
        self._critics = [ScalarCritic(make_torso, which) for which in ("first", "second")]

    def __call__(self, features: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """([B, N] float32, [B, A] float32) -> [B, 2] float32."""
        return tf.stack([critic(features, action) for critic in self._critics], axis=-1)
