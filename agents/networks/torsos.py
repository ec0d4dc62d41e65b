"""Hidden layers of policies and critics, by name: `--agent.torso`."""

import contextlib
import contextvars
import enum
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import sonnet as snt
import tensorflow as tf

from agents.networks.mlp import LayerNorm, MakeTorso, layer_norm_mlp
from agents.registry import features_of, find_part
from rl_replicator.layers.batch_norm import CrossReplicaBatchNorm, MovingAverage
from rl_replicator.layers.linear import Linear

_OPTION = "agent.torso"
# Hidden units of a residual block for each of its features.
_EXPANSION = 4


class Statistics(enum.Enum):
    """The mean and variance that batch norm uses, as arguments of its layers."""

    MOVING = (False, False)
    """Moving averages, as in policies that act."""
    BATCH = (False, True)
    """Those of the global batch."""
    TRAINING = (True, True)
    """Those of the global batch, which also move the averages."""


_statistics = contextvars.ContextVar("statistics", default=Statistics.MOVING)


@contextlib.contextmanager
def batch_norm(statistics: Statistics) -> Iterator[None]:
    """Chooses the statistics of batch norm in the networks that are called inside.

    Args:
      statistics: `MOVING` is the default. All replicas must enter the others, outside of `tf.cond`.
    """
    token = _statistics.set(statistics)
    try:
        yield
    finally:
        _statistics.reset(token)


class ResidualBlock(snt.Module):
    """x + linear(relu(linear(LayerNorm(x)))): [B, N] -> [B, N] float32, with 4 N hidden units."""

    def __init__(self, size: int, name: str = "block"):
        """Makes the layers.

        Args:
          size: N.
          name: name of the module.
        """
        super().__init__(name=name)
        he = snt.initializers.VarianceScaling(2.0, mode="fan_in", distribution="truncated_normal")
        self._branch = snt.Sequential(
            [
                LayerNorm(),
                Linear(_EXPANSION * size, w_init=he, name="hidden"),
                tf.nn.relu,
                Linear(size, w_init=he, name="output"),
            ]
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> [B, N] float32."""
        return x + self._branch(x)


def simba(layer_sizes: Sequence[int], name: str) -> snt.Sequential:
    """A linear layer, residual blocks, and a LayerNorm at the end.

    The network of SimBa (Lee et al. 2024, arXiv:2410.09754), for observations that are normalised.

    Args:
      layer_sizes: features of each block, all equal.
      name: name of the module.

    Returns:
      A module from [B, N] to [B, layer_sizes[-1]] float32.
    """
    orthogonal = snt.initializers.Orthogonal(1.0)
    layers: list[Callable] = [Linear(layer_sizes[0], w_init=orthogonal, name="linear_0")]
    for index, size in enumerate(layer_sizes):
        layers.append(ResidualBlock(size, name=f"block_{index}"))
    return snt.Sequential([*layers, LayerNorm()], name=name)


class BatchNormMlp(snt.Module):
    """Batch norm, then linear layers without bias, each with batch norm and ReLU.

    The network of XQC (Palenicek et al. 2025, arXiv:2509.25174). `batch_norm` chooses between the
    statistics of the batch, over all replicas, and their moving averages.
    """

    def __init__(self, layer_sizes: Sequence[int], name: str):
        """Makes the layers.

        Args:
          layer_sizes: units of each layer.
          name: name of the module.
        """
        super().__init__(name=name)
        init = snt.initializers.Orthogonal(math.sqrt(2))
        self._layers = [
            Linear(size, with_bias=False, w_init=init, name=f"linear_{index}")
            for index, size in enumerate(layer_sizes)
        ]
        self._norms = [
            CrossReplicaBatchNorm(
                create_scale=True,
                create_offset=index > 0,  # The next norm would remove that of the inputs.
                moving_mean=MovingAverage(0.99, 0.0, f"mean_{index}"),
                moving_variance=MovingAverage(0.99, 1.0, f"variance_{index}"),
                eps=1e-3,
                name=f"norm_{index}",
            )
            for index in range(len(layer_sizes) + 1)
        ]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> [B, M] float32."""
        flags = _statistics.get().value
        first, *others = self._norms
        x = first(x, *flags)
        for layer, norm in zip(self._layers, others, strict=True):
            x = tf.nn.relu(norm(layer(x), *flags))
        return x


TORSOS: dict[str, MakeTorso] = {"mlp": layer_norm_mlp, "simba": simba, "xqc": BatchNormMlp}


def find_torso(name: str) -> MakeTorso:
    """Returns the function that `--agent.torso` names: (layer sizes, name) -> module.

    Raises:
      ConfigError: if there is none.
    """
    return find_part(name, TORSOS, _OPTION)


class ProjectedTorso(snt.Module):
    """A torso after a projection with LayerNorm and tanh: [B, N] -> [B, H] float32.

    For the thousands of features of a convolutional encoder.
    """

    def __init__(self, make_torso: MakeTorso, layer_sizes: Sequence[int], name: str):
        """Makes the layers.

        Args:
          make_torso: makes what follows the projection.
          layer_sizes: units of the projection, then of each layer of the torso, if it has any.
          name: name of the module.
        """
        super().__init__(name=name)
        size, *others = layer_sizes
        with tf.name_scope("projection"):  # The torso has layers of these names, too.
            self._projection = layer_norm_mlp([size], "projection")
        self._torso = make_torso(others, "torso") if others else None

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> [B, H] float32."""
        projected = self._projection(features)
        return projected if self._torso is None else hidden(self._torso, projected)


def behind_projection(make_torso: MakeTorso) -> MakeTorso:
    """Returns a function that makes a torso of which the first size is that of a projection."""
    if make_torso is layer_norm_mlp:  # Its first layer is one.
        return make_torso
    return functools.partial(ProjectedTorso, make_torso)


def hidden(torso: snt.Module, features: tf.Tensor) -> tf.Tensor:
    """Calls a torso, which may be user-defined: [B, N] float32 -> [B, H] float32.

    Raises:
      ConfigError: if it is not a module, or returns anything else.
    """
    return features_of(_OPTION, torso, features)


def has_batch_norm(network: snt.Module) -> bool:
    """Whether a network has the torso `xqc`."""
    return any(isinstance(module, BatchNormMlp) for module in network.submodules)


def joint_values(
    online: snt.Module,
    target: snt.Module,
    first: tuple[tf.Tensor, tf.Tensor],
    second: tuple[tf.Tensor, tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Evaluates the online critic at one batch, and the target critic at the next.

    Critics with batch norm get both as one batch: the statistics of stored actions alone would not
    fit the policy's actions (CrossQ, Bhatt et al. 2024, arXiv:1902.05605).

    Args:
      online: critic, ([B, F] features, [B, A] actions) -> [B, ...].
      target: critic of the same kind.
      first: features and actions at which the online critic is trained.
      second: features and actions of the bootstrap.

    Returns:
      Values of `online` at `first` and of `target` at `second`, [B, ...] each.
    """
    if not has_batch_norm(online):
        return online(*first), target(*second)
    both = [tf.concat(pair, axis=0) for pair in zip(first, second, strict=True)]
    with batch_norm(Statistics.TRAINING):
        values = online(*both)
    with batch_norm(Statistics.BATCH):
        target_values = target(*both)
    return tf.split(values, 2)[0], tf.split(target_values, 2)[1]


def to_unit_length(*networks: snt.Module) -> None:
    """Divides each unit's weights by their norm, the last layer's too, if the torso is `xqc`.

    After batch norm, the size of weights only changes the effective learning rate (XQC). Call it
    after each step of the optimizer.

    Args:
      *networks: built policies and critics.
    """
    for network in filter(has_batch_norm, networks):
        for variable in network.trainable_variables:
            if len(variable.shape) == 2:
                variable.assign(tf.math.l2_normalize(variable, axis=0))


class CriticTorso(snt.Module):
    """A critic except for its last layer: ([B, N] features, [B, A] actions) -> [B, H] float32.

    A few actions would be lost among thousands of encoder features. With `feature_size`, the
    critic's own layer projects the features before they are concatenated with the actions (the
    trunk of DrQ-v2, arXiv:2107.09645).
    """

    def __init__(
        self,
        layer_sizes: Sequence[int],
        feature_size: int | None = None,
        make_torso: MakeTorso = layer_norm_mlp,
        name: str = "torso",
    ):
        """Makes the layers.

        Args:
          layer_sizes: units of each hidden layer, at least one.
          feature_size: units of the trunk; None for no trunk.
          make_torso: makes the hidden layers.
          name: name of the module.
        """
        super().__init__(name=name)
        if feature_size is None:
            self._trunk: Callable = tf.identity
            self._torso = make_torso(layer_sizes, "mlp")
        else:
            with tf.name_scope("trunk"):  # The torso has layers of these names, too.
                self._trunk = layer_norm_mlp([feature_size], "trunk")
            self._torso = (
                snt.nets.MLP(layer_sizes, activation=tf.nn.elu, activate_final=True, name="mlp")
                if make_torso is layer_norm_mlp  # The trunk is its first layer.
                else make_torso(layer_sizes, "mlp")
            )

    def __call__(self, features: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """([B, N] float32, [B, A] float32) -> [B, H] float32."""
        return hidden(self._torso, tf.concat([self._trunk(features), action], axis=-1))
