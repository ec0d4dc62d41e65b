"""Fully connected networks that agents share."""

from collections.abc import Callable, Sequence

import sonnet as snt
import tensorflow as tf


def layer_norm_mlp(layer_sizes: Sequence[int], name: str) -> snt.Sequential:
    """A multi-layer perceptron with LayerNorm and tanh after its first layer, ELU after the others.

    LayerNorm and tanh bound the features whatever the observation's scale, which keeps the critic
    from diverging (the torso of D4PG's and MPO's published agents).

    Args:
      layer_sizes: units of each layer, at least one.
      name: name of the module.

    Returns:
      A module from [B, N] to [B, layer_sizes[-1]] float32.
    """
    layers: list[Callable] = []
    for index, size in enumerate(layer_sizes):
        # Distinct names: actors match variables by path.
        init = snt.initializers.VarianceScaling(0.333, mode="fan_out", distribution="uniform")
        layers.append(snt.Linear(size, w_init=init, name=f"linear_{index}"))
        layers += [snt.LayerNorm(-1, True, True), tf.tanh] if index == 0 else [tf.nn.elu]
    return snt.Sequential(layers, name=name)


class CriticTorso(snt.Module):
    """All of a critic but its last layer: ([B, N] features, [B, A] actions) -> [B, H] float32.

    A few actions beside thousands of features of an encoder would be lost. With `feature_size`, a
    layer of the critic's own narrows the features before the actions join them (the trunk of
    DrQ-v2, arXiv:2107.09645).
    """

    def __init__(
        self, layer_sizes: Sequence[int], feature_size: int | None = None, name: str = "torso"
    ):
        """Makes the layers.

        Args:
          layer_sizes: units of each hidden layer, at least one.
          feature_size: units of the trunk; None for no trunk.
          name: name of the module.
        """
        super().__init__(name=name)
        if feature_size is None:
            self._trunk: Callable = tf.identity
            self._torso: Callable = layer_norm_mlp(layer_sizes, "mlp")
        else:
            self._trunk = layer_norm_mlp([feature_size], "trunk")
            self._torso = snt.nets.MLP(
                layer_sizes, activation=tf.nn.elu, activate_final=True, name="mlp"
            )

    def __call__(self, features: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """([B, N] float32, [B, A] float32) -> [B, layer_sizes[-1]] float32."""
        return self._torso(tf.concat([self._trunk(features), action], axis=-1))
