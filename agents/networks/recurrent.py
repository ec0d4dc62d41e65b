"""Encoders with a memory: a recurrent core behind an encoder of single observations."""

from collections.abc import Callable
from typing import Any

import sonnet as snt
import tensorflow as tf
import tree

from agents.config import CoreConfig
from agents.networks.mlp import layer_norm_mlp
from agents.registry import features_of

_CORES: dict[str, Callable[..., Any]] = {"lstm": snt.LSTM, "gru": snt.GRU}


class RecurrentEncoder(snt.Module):
    """Features of the observations of an episode so far.

    The observation's encoder is followed by a layer with LayerNorm and tanh, which feeds the core.
    Features are the outputs of both, [B, F] float32. The state is one vector of K numbers, an
    LSTM's hidden and cell state; it is zero at an episode's start.

    Attributes:
      state_size: K.
    """

    def __init__(
        self, make_encoder: Callable[[str], snt.Module], memory: CoreConfig, name: str = "encoder"
    ):
        """Makes the layers.

        Args:
          make_encoder: makes the encoder of an observation, given its name.
          memory: the core and its size.
          name: name of the module.
        """
        super().__init__(name=name)
        self._encoder = make_encoder("observation")
        with tf.name_scope("embedding"):  # An encoder of the user's may have such layers, too.
            self._embedding = layer_norm_mlp([memory.size], "mlp")
        self._core = _CORES[memory.core](memory.size, name="core")
        self._structure = tree.map_structure(lambda _: 0, self._core.initial_state(1))
        self._num_parts = len(tree.flatten(self._structure))
        self.state_size = self._num_parts * memory.size

    def __call__(self, observation: Any) -> tf.Tensor:
        """Returns features at an episode's start: nest of [B, ...] -> [B, F] float32."""
        size = tf.shape(tree.flatten(observation)[0])[0]
        return self.step(observation, tf.zeros([size, self.state_size]))[0]

    def step(self, observation: Any, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Takes one observation of each episode.

        Args:
          observation: nest of [B, ...].
          state: [B, K] float32, the state before it.

        Returns:
          Features [B, F] and the next state [B, K], float32.
        """
        embedded = self._embedding(features_of("agent.encoder", self._encoder, observation))
        output, state = self._recur(embedded, state)
        return tf.concat([embedded, output], axis=-1), state

    def unroll(
        self, observation: Any, state: tf.Tensor, kept: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Takes T observations of each episode.

        Args:
          observation: nest of [B, T, ...], T known.
          state: [B, K] float32, the state before the first one.
          kept: [B, T] float32, 0 where the state after an observation is zero again.

        Returns:
          Features [B, T, F] and the state [B, K] after the last one, float32.
        """
        rows = tree.map_structure(
            lambda x: tf.reshape(x, [-1, *x.shape[2:]]), observation
        )  # [B * T, ...]
        features = features_of("agent.encoder", self._encoder, rows)
        embedded = self._embedding(features)  # [B * T, E]
        embedded = tf.reshape(embedded, [-1, kept.shape[1], embedded.shape[-1]])
        outputs = []
        for x, factor in zip(tf.unstack(embedded, axis=1), tf.unstack(kept, axis=1), strict=True):
            output, state = self._recur(x, state)
            state *= factor[:, tf.newaxis]
            outputs.append(output)
        return tf.concat([embedded, tf.stack(outputs, axis=1)], axis=-1), state

    def _recur(self, x: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Calls the core: [B, E] and [B, K] -> [B, E] and [B, K]."""
        parts = tf.split(state, self._num_parts, axis=-1)
        output, parts = self._core(x, tree.unflatten_as(self._structure, parts))
        return output, tf.concat(tree.flatten(parts), axis=-1)
