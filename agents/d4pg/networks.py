"""The policy and the distributional critic of D4PG, for features or flat observations."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf


def layer_norm_mlp(layer_sizes: Sequence[int], name: str) -> snt.Sequential:
    """A multi-layer perceptron whose first layer is normalised and squashed.

    LayerNorm and tanh after the first layer bound the features whatever the observation's scale,
    which keeps the critic from diverging (the torso of D4PG's and MPO's published agents).

    Args:
      layer_sizes: units of each layer, at least one.
      name: name of the module.

    Returns:
      A module from [B, N] to [B, layer_sizes[-1]] float32.
    """
    layers: list[Callable] = []
    for index, size in enumerate(layer_sizes):
        # Names of their own: variables are matched by path on their way to the actors.
        init = snt.initializers.VarianceScaling(0.333, mode="fan_out", distribution="uniform")
        layers.append(snt.Linear(size, w_init=init, name=f"linear_{index}"))
        layers += [snt.LayerNorm(-1, True, True), tf.tanh] if index == 0 else [tf.nn.elu]
    return snt.Sequential(layers, name=name)


@snt.allow_empty_variables
class NoEncoder(snt.Module):
    """For observations that are features already: [B, N] float32 -> the same."""

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        return observation


class Policy(snt.Module):
    """Deterministic policy: [B, N] float32 features -> [B, A] float32 actions in (-1, 1)."""

    def __init__(self, layer_sizes: Sequence[int], num_actions: int, name: str = "policy"):
        super().__init__(name=name)
        self._torso = layer_norm_mlp(layer_sizes, "torso")
        # Nearly zero at first, so that early actions are not stuck where tanh is flat.
        self._head = snt.Linear(
            num_actions, w_init=snt.initializers.VarianceScaling(1e-4), name="head"
        )

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        return tf.tanh(self._head(self._torso(observation)))


class CategoricalCritic(snt.Module):
    """Distribution of the return: ([B, N] features, [B, A] actions) -> [B, Z] logits."""

    def __init__(self, layer_sizes: Sequence[int], num_atoms: int, name: str = "critic"):
        super().__init__(name=name)
        self._torso = layer_norm_mlp(layer_sizes, "torso")
        self._head = snt.Linear(
            num_atoms, w_init=snt.initializers.VarianceScaling(1e-2), name="head"
        )

    def __call__(self, observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        return self._head(self._torso(tf.concat([observation, action], axis=-1)))


class PixelCritic(snt.Module):
    """As `CategoricalCritic`, for features so many that a few actions beside them would be lost.

    The features are narrowed to `feature_size` first, by a layer of the critic's own (the trunk of
    DrQ-v2, arXiv:2107.09645).
    """

    def __init__(
        self, feature_size: int, layer_sizes: Sequence[int], num_atoms: int, name: str = "critic"
    ):
        super().__init__(name=name)
        self._trunk = layer_norm_mlp([feature_size], "trunk")
        self._torso = snt.nets.MLP(
            layer_sizes, activation=tf.nn.elu, activate_final=True, name="torso"
        )
        self._head = snt.Linear(
            num_atoms, w_init=snt.initializers.VarianceScaling(1e-2), name="head"
        )

    def __call__(self, observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        features = self._trunk(observation)  # [B, F]
        return self._head(self._torso(tf.concat([features, action], axis=-1)))


class D4PGNetworks(NamedTuple):
    """What the learner trains; an actor makes only the first two.

    Attributes:
      encoder: from observations to features [B, N], shared by the others.
      policy: the deterministic policy.
      critic: the distributional critic.
    """

    encoder: snt.Module
    policy: Policy
    critic: CategoricalCritic | PixelCritic
