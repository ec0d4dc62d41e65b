"""What MR.Q's networks see of an action: a vector, also for a discrete one.

Shapes: B is the batch, A the size of the vector.
"""

from collections.abc import Callable

import sonnet as snt
import tensorflow as tf

from agents.dqn.losses import best_action, legal_values
from agents.mrq import losses

# Draws [B, A] float32 from the standard normal distribution.
Draw = Callable[[], tf.Tensor]


class ContinuousVectors:
    """Vectors in [-1, 1].

    Attributes:
      noise_scale: factor on noise whose unit is half of a range of 2.
    """

    noise_scale = 1.0

    def encode(self, action: tf.Tensor) -> tf.Tensor:
        """Returns stored actions as vectors: [..., A], or [...] int32 -> [..., A] float32."""
        return action

    def soft(
        self, policy: snt.Module, preactivations: tf.Tensor, mask: tf.Tensor | None, draw: Draw
    ) -> tf.Tensor:
        """Returns the policy's actions, with a gradient.

        Args:
          policy: the policy network.
          preactivations: [B, A] float32.
          mask: [B, A] float32, 0 where an action is illegal; None if all are legal.
          draw: the source of noise.

        Returns:
          [B, A] float32.
        """
        del mask, draw
        return policy.squash(preactivations)

    def nearest(self, action: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """Returns the legal actions that are nearest: [B, A] float32 -> the same."""
        del mask
        return tf.clip_by_value(action, -1.0, 1.0)


class OneHotVectors:
    """One-hot vectors, and samples of Gumbel-softmax in their place; see `ContinuousVectors`."""

    noise_scale = 0.5

    def __init__(self, num_actions: int, temperature: float):
        """Stores A, and the temperature of the samples."""
        self._num_actions = num_actions
        self._temperature = temperature

    def encode(self, action: tf.Tensor) -> tf.Tensor:
        """See `ContinuousVectors`."""
        return tf.one_hot(action, self._num_actions)

    def soft(
        self, policy: snt.Module, preactivations: tf.Tensor, mask: tf.Tensor | None, draw: Draw
    ) -> tf.Tensor:
        """See `ContinuousVectors`."""
        del policy
        return losses.gumbel_softmax(legal_values(preactivations, mask), draw(), self._temperature)

    def nearest(self, action: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """See `ContinuousVectors`; after the end of an episode, none may be legal."""
        return self.encode(best_action(legal_values(action, mask)))


ActionVectors = ContinuousVectors | OneHotVectors
