"""The networks of MR.Q: features of states and of pairs, the model that trains them, and critics.

Shapes: B is the batch, T the steps of an unrolled model, A the size of an action, Z the number of
features of a state, W of a pair of state and action, M the number of bins of a reward.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from agents.networks.mlp import LayerNorm, MakeTorso
from agents.networks.torsos import hidden
from agents.registry import features_of
from rl_replicator.layers.linear import Linear

# Glorot & Bengio 2010, times the gain of ReLU.
_INITIAL = snt.initializers.VarianceScaling(2.0, mode="fan_avg", distribution="uniform")


class Networks(NamedTuple):
    """Built networks that act and value actions; the encoders are copies of the model's.

    Attributes:
      encoder: f, [B, ...] observations -> [B, Z] float32 features.
      pair_encoder: g, ([B, Z] features, [B, A] actions) -> [B, W].
      policy: [B, Z] -> [B, A] actions, or logits of discrete ones.
      critic: [B, W] -> [B, 2] values.
    """

    encoder: snt.Module
    pair_encoder: snt.Module
    policy: snt.Module
    critic: snt.Module


class LatentPrediction(NamedTuple):
    """What the model predicts after each of T actions.

    Attributes:
      features: [B, T, Z] of the next state.
      reward: [B, T, M] logits.
      end: [B, T], 1 at the end of an episode.
    """

    features: tf.Tensor
    reward: tf.Tensor
    end: tf.Tensor


def normalized_mlp(layer_sizes: Sequence[int], name: str) -> snt.Sequential:
    """Linear layers, each with LayerNorm and ELU: [B, N] -> [B, layer_sizes[-1]] float32."""
    layers: list[Callable] = []
    for index, size in enumerate(layer_sizes):
        layers.append(Linear(size, w_init=_INITIAL, name=f"linear_{index}"))
        layers += [LayerNorm(name=f"norm_{index}"), tf.nn.elu]
    return snt.Sequential(layers, name=name)


class StateEncoder(snt.Module):
    """f: [B, ...] observations -> [B, Z] float32 features."""

    def __init__(
        self,
        make_encoder: Callable[[str], snt.Module],
        layer_sizes: Sequence[int],
        make_torso: MakeTorso,
        name: str = "encoder",
    ):
        """Makes the layers.

        Args:
          make_encoder: name -> the first layers, to [B, N] float32.
          layer_sizes: units of the layers after these; the last is Z.
          make_torso: makes them.
          name: name of the module.
        """
        super().__init__(name=name)
        self._encoder = make_encoder("first")
        self._torso = make_torso(layer_sizes, "torso")

    def __call__(self, observation: Any) -> tf.Tensor:
        """[B, ...] -> [B, Z] float32."""
        return hidden(self._torso, features_of("agent.encoder", self._encoder, observation))


class PairEncoder(snt.Module):
    """g: ([B, Z] features, [B, A] actions) -> [B, W] float32."""

    def __init__(self, width: int, make_torso: MakeTorso, name: str = "pair_encoder"):
        """Makes the layers.

        Args:
          width: W.
          make_torso: makes the hidden layers.
          name: name of the module.
        """
        super().__init__(name=name)
        self._action = Linear(width // 2, w_init=_INITIAL, name="action")
        self._torso = make_torso((width, width), "torso")
        self._output = Linear(width, w_init=_INITIAL, name="output")

    def __call__(self, features: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """([B, Z] float32, [B, A] float32) -> [B, W] float32."""
        inputs = tf.concat([features, tf.nn.elu(self._action(action))], axis=-1)
        return self._output(hidden(self._torso, inputs))


class LatentModel(snt.Module):
    """The encoders and a linear layer from g to the end, the next features and the reward."""

    def __init__(self, encoder: snt.Module, pair_encoder: snt.Module, num_bins: int):
        """Stores the encoders, and makes the last layer.

        Args:
          encoder: f.
          pair_encoder: g.
          num_bins: M.
        """
        super().__init__(name="model")
        self.encoder, self.pair_encoder = encoder, pair_encoder
        self._num_bins = num_bins

    @snt.once
    def _make_head(self, num_features: int) -> None:
        self._head = Linear(1 + num_features + self._num_bins, w_init=_INITIAL, name="head")

    def __call__(self, observation: Any, actions: tf.Tensor) -> LatentPrediction:
        """Unrolls the model from one observation: [B, ...], [B, T, A] -> `LatentPrediction`."""
        features, outputs = self.encoder(observation), []
        self._make_head(features.shape[-1])
        for step in range(actions.shape[1]):
            outputs.append(self._head(self.pair_encoder(features, actions[:, step])))
            features = outputs[-1][:, 1 : -self._num_bins]
        predicted = tf.stack(outputs, axis=1)  # [B, T, 1 + Z + M]
        return LatentPrediction(
            features=predicted[:, :, 1 : -self._num_bins],
            reward=predicted[:, :, -self._num_bins :],
            end=predicted[:, :, 0],
        )


class PairCritic(snt.Module):
    """Values of the features of pairs: [B, W] -> [B] float32."""

    def __init__(self, layer_sizes: Sequence[int], make_torso: MakeTorso, name: str):
        """Makes the layers.

        Args:
          layer_sizes: units of each hidden layer.
          make_torso: makes the hidden layers.
          name: name of the module.
        """
        super().__init__(name=name)
        self._torso = make_torso(layer_sizes, "torso")
        self._head = Linear(1, w_init=_INITIAL, name="head")

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """[B, W] float32 -> [B] float32."""
        return tf.squeeze(self._head(hidden(self._torso, features)), axis=-1)
