"""The networks of DQN: from features to outputs for every action.

Shapes: B is the batch, N the number of features, A of actions, Z of outputs for an action.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from agents.networks.mlp import MakeTorso
from agents.networks.torsos import hidden


class QNetworks(NamedTuple):
    """Built networks that a learner trains; actors have copies.

    Attributes:
      encoder: [B, ...] observations -> [B, N] float32 features.
      policy: [B, N] features -> [B, A, Z] outputs.
    """

    encoder: snt.Module
    policy: snt.Module

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """The variables that the loss trains, in an order that equal networks share."""
        return (*self.encoder.trainable_variables, *self.policy.trainable_variables)


class PlainNetwork(snt.Module):
    """[B, N] float32 features -> [B, A, Z] float32 outputs."""

    def __init__(
        self,
        layer_sizes: Sequence[int],
        num_actions: int,
        initial_outputs: np.ndarray,
        make_torso: MakeTorso,
        name: str = "policy",
    ):
        """Makes the layers.

        Args:
          layer_sizes: units of each hidden layer, at least one.
          num_actions: A.
          initial_outputs: [Z] float32, outputs of a new network for every action.
          make_torso: makes the hidden layers.
          name: name of the module.
        """
        super().__init__(name=name)
        self._torso = make_torso(layer_sizes, "torso")
        self._shape = [num_actions, len(initial_outputs)]
        bias = np.tile(initial_outputs, num_actions)
        self._head = snt.Linear(
            len(bias),
            w_init=snt.initializers.VarianceScaling(1e-2),
            b_init=lambda shape, dtype: tf.constant(bias, dtype, shape),
            name="head",
        )

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> [B, A, Z] float32."""
        return tf.reshape(self._head(hidden(self._torso, features)), [-1, *self._shape])


class DuellingNetwork(snt.Module):
    """[B, N] float32 features -> [B, A, Z] float32 outputs, from two streams.

    Wang et al. 2016 (arXiv:1511.06581), equation 9: q(a) = v + u(a) - mean_a u(a), for every output
    of an action, as in Rainbow. The streams have their own last hidden layer, and share the others.
    """

    def __init__(
        self,
        layer_sizes: Sequence[int],
        num_actions: int,
        initial_outputs: np.ndarray,
        make_torso: MakeTorso,
        make_stream: MakeTorso,
        name: str = "policy",
    ):
        """Makes the layers; see `PlainNetwork`. `make_stream` makes the last one of a stream."""
        super().__init__(name=name)
        shared, last = layer_sizes[:-1], layer_sizes[-1:]
        self._torso = make_torso(shared, "torso") if shared else None
        zeros = np.zeros_like(initial_outputs)
        self._value = PlainNetwork(last, 1, initial_outputs, make_stream, "value")
        self._advantage = PlainNetwork(last, num_actions, zeros, make_stream, "advantage")

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> [B, A, Z] float32."""
        shared = features if self._torso is None else hidden(self._torso, features)
        advantage = self._advantage(shared)  # [B, A, Z]
        mean = tf.reduce_mean(advantage, axis=1, keepdims=True)  # [B, 1, Z]
        return self._value(shared) + advantage - mean
