"""The policy and the distributional critic of D4PG, for features or flat observations."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

# By how much the first logits of a critic fall from atom to atom, away from a return of 0: steep
# enough for a mean near 0, and so flat that no atom is out of reach.
_PRIOR_SLOPE = 0.2


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


@tf.custom_gradient
def tanh_with_way_back(x: tf.Tensor):
    """tanh, whose gradient vanishes towards a limit but not away from it.

    Where tanh is flat a policy stays for good: far out, no gradient comes through to bring it back.
    Hausknecht & Stone 2016 (arXiv:1511.04143, "inverting gradients") scale dQ/da by the room left
    in its direction in place of a squashing function's derivative: here 1 - y upwards, 1 + y
    downwards, both 1 at 0 as is tanh's own.

    Args:
      x: float32 of any shape.

    Returns:
      As `x`, in [-1, 1].
    """
    y = tf.tanh(x)

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        # A loss is descended: where its gradient is negative, y is to grow.
        return dy * tf.where(dy < 0, 1.0 - y, 1.0 + y)

    return y, gradient


class Policy(snt.Module):
    """Deterministic policy: [B, N] float32 features -> [B, A] float32 actions in (-1, 1)."""

    def __init__(
        self,
        layer_sizes: Sequence[int],
        num_actions: int,
        name: str = "policy",
        squash: Callable[[tf.Tensor], tf.Tensor] = tf.tanh,
    ):
        super().__init__(name=name)
        self._squash = squash
        self._torso = layer_norm_mlp(layer_sizes, "torso")
        # Nearly zero at first, so that early actions are not stuck where tanh is flat.
        self._head = snt.Linear(
            num_actions, w_init=snt.initializers.VarianceScaling(1e-4), name="head"
        )

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        return self._squash(self._head(self._torso(observation)))


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
    DrQ-v2, arXiv:2107.09645). Its first word on every return is "about 0", as that of DrQ-v2's
    scalar critic, and not the middle of the range: to come down from there takes thousands of
    steps, in which the policy would follow a critic that knows only that everything gets worse.
    """

    def __init__(
        self, feature_size: int, layer_sizes: Sequence[int], atoms: np.ndarray, name: str = "critic"
    ):
        super().__init__(name=name)
        logits = -_PRIOR_SLOPE * np.abs(atoms) / (atoms[1] - atoms[0])
        self._trunk = layer_norm_mlp([feature_size], "trunk")
        self._torso = snt.nets.MLP(
            layer_sizes, activation=tf.nn.elu, activate_final=True, name="torso"
        )
        self._head = snt.Linear(
            len(atoms),
            w_init=snt.initializers.VarianceScaling(1e-2),
            b_init=lambda shape, dtype: tf.constant(logits, dtype, shape),
            name="head",
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
