"""The squashed Gaussian policy of SAC."""

from collections.abc import Sequence
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from agents.networks.mlp import MakeTorso, hidden, layer_norm_mlp

# Bounds of the logarithm of the standard deviation, before squashing.
_LOG_STDDEV_MIN, _LOG_STDDEV_MAX = -10.0, 2.0


class Gaussian(NamedTuple):
    """A diagonal Gaussian over actions before they are squashed by tanh.

    Attributes:
      mean: [..., A] float32.
      stddev: [..., A] float32, positive.
    """

    mean: tf.Tensor
    stddev: tf.Tensor


class GaussianPolicy(snt.Module):
    """[B, N] float32 features -> `Gaussian` of [B, A]."""

    def __init__(
        self,
        layer_sizes: Sequence[int],
        num_actions: int,
        make_torso: MakeTorso = layer_norm_mlp,
        name: str = "policy",
    ):
        """Makes the layers.

        Args:
          layer_sizes: units of each hidden layer, at least one.
          num_actions: A.
          make_torso: makes the hidden layers.
          name: name of the module.
        """
        super().__init__(name=name)
        self._torso = make_torso(layer_sizes, "torso")
        # Nearly zero at first: the first actions have mean 0 and standard deviation 1.
        init = snt.initializers.VarianceScaling(1e-4)
        self._mean = snt.Linear(num_actions, w_init=init, name="mean")
        self._log_stddev = snt.Linear(num_actions, w_init=init, name="log_stddev")

    def __call__(self, features: tf.Tensor) -> Gaussian:
        """[B, N] float32 -> `Gaussian` of [B, A] float32."""
        x = hidden(self._torso, features)
        log_stddev = tf.clip_by_value(self._log_stddev(x), _LOG_STDDEV_MIN, _LOG_STDDEV_MAX)
        return Gaussian(self._mean(x), tf.exp(log_stddev))
