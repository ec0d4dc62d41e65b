"""The policy of CRR: a mixture of Gaussians over actions."""

from collections.abc import Sequence
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from agents.networks.mlp import MakeTorso, layer_norm_mlp
from agents.networks.torsos import hidden

# Without a limit, the densities at actions that occur repeatedly, such as 1, would grow for ever.
_MIN_STDDEV = 0.01
# softplus(-1) is 0.31: new policies neither miss the recorded actions nor cover all actions.
_INITIAL = -1.0


class Mixture(NamedTuple):
    """A mixture of M diagonal Gaussians over actions, which are not squashed.

    Attributes:
      logits: [..., M] float32, of the components.
      mean: [..., M, A] float32 in [-1, 1].
      stddev: [..., M, A] float32, positive.
    """

    logits: tf.Tensor
    mean: tf.Tensor
    stddev: tf.Tensor


class MixturePolicy(snt.Module):
    """[B, N] float32 features -> `Mixture` of [B, M] and [B, M, A]."""

    def __init__(
        self,
        layer_sizes: Sequence[int],
        num_actions: int,
        num_components: int,
        make_torso: MakeTorso = layer_norm_mlp,
        name: str = "policy",
    ):
        """Makes the layers.

        Args:
          layer_sizes: units of each hidden layer, at least one.
          num_actions: A.
          num_components: M.
          make_torso: makes the hidden layers.
          name: name of the module.
        """
        super().__init__(name=name)
        self._shape = [num_components, num_actions]
        self._torso = make_torso(layer_sizes, "torso")
        size = num_components * num_actions
        # The means must differ at first: equal components would have equal gradients for ever.
        self._mean = snt.Linear(size, name="mean")
        small = snt.initializers.VarianceScaling(1e-4)
        start = snt.initializers.Constant(_INITIAL)
        self._stddev = snt.Linear(size, w_init=small, b_init=start, name="stddev")
        self._logits = snt.Linear(num_components, w_init=small, name="logits")

    def __call__(self, features: tf.Tensor) -> Mixture:
        """[B, N] float32 -> `Mixture` of [B, M] and [B, M, A] float32."""
        x = hidden(self._torso, features)
        mean, stddev = tf.tanh(self._mean(x)), _MIN_STDDEV + tf.nn.softplus(self._stddev(x))
        return Mixture(
            self._logits(x),
            tf.reshape(mean, [-1, *self._shape]),
            tf.reshape(stddev, [-1, *self._shape]),
        )


def most_probable(mixture: Mixture) -> tf.Tensor:
    """Returns the mean of the component with the greatest weight: [B, A] float32.

    Args:
      mixture: of [B, M] and [B, M, A].
    """
    best = tf.reduce_max(mixture.logits, axis=-1, keepdims=True)
    chosen = tf.cast(mixture.logits >= best, tf.float32)  # [B, M]
    chosen /= tf.reduce_sum(chosen, axis=-1, keepdims=True)
    return tf.reduce_sum(chosen[..., None] * mixture.mean, axis=-2)
