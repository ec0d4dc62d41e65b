"""Residual networks of Miyato & Koyama 2018 (arXiv:1802.05637), figures 13 and 14.

Images are NHWC. Variables are float32 whatever the type that the layers compute in, which is that
of the noise or the images; all are float64 where that is.

The generator's convolutions have no biases: batch norm follows and would take them out again, and
Adam would make steps of a rounding error's sign.
"""

import dataclasses
import itertools

import sonnet as snt
import tensorflow as tf

from rl_replicator.layers import batch_norm
from rl_replicator.learners.resnet.normalization import cross_replica_batch_norm
from rl_replicator.learners.sngan.spectral_norm import SpectralNorm

_DECAY = 0.9
_SMALLEST_SIDE = 4
_LARGEST_MULTIPLE = 16
# Glorot & Bengio 2010 for what is not followed by a ReLU, and twice the variance for the rest.
_GLOROT = snt.initializers.VarianceScaling(1.0, "fan_avg", "uniform")
_GLOROT_RELU = snt.initializers.VarianceScaling(2.0, "fan_avg", "uniform")


@dataclasses.dataclass(frozen=True)
class Shape:
    """The two networks for images of one size.

    Attributes:
      side: height and width of the generator's first feature map.
      generator: channels of that map and after each block, in multiples of the width.
      discriminator: channels after each block.
      num_halvings: of the discriminator's blocks, so many halve height and width.
    """

    side: int
    generator: tuple[int, ...]
    discriminator: tuple[int, ...]
    num_halvings: int


def layout(image_size: int) -> Shape:
    """A block for each doubling from 4x4 to 7x7 on.

    For 128x128 and 64x64 images the networks of Miyato & Koyama 2018, for 32x32 those of Miyato et
    al. 2018, table 4, with 64 as the width.
    """
    if image_size == 32:
        return Shape(4, (4, 4, 4, 4), (2, 2, 2, 2), num_halvings=2)
    side, doublings = image_size, 0
    while side % 2 == 0 and side >= 2 * _SMALLEST_SIDE:
        side, doublings = side // 2, doublings + 1
    multiples = [min(2**i, _LARGEST_MULTIPLE) for i in range(doublings + 1)]
    return Shape(side, tuple(multiples[::-1]), tuple(multiples), doublings)


class Layer(snt.Module):
    """Dense for inputs of two axes, a convolution with "SAME" padding for those of four."""

    def __init__(
        self,
        channels: int,
        w_init: snt.initializers.Initializer,
        size: int = 1,
        has_bias: bool = False,
        weight_norm: SpectralNorm | None = None,
        name: str | None = None,
    ):
        super().__init__(name=name)
        self._channels = channels
        self._w_init = w_init
        self._size = size
        self._has_bias = has_bias
        self._weight_norm = weight_norm

    @snt.once
    def _build(self, x: tf.Tensor) -> None:
        dtype = tf.float64 if x.dtype == tf.float64 else tf.float32
        spatial = [self._size] * (x.shape.rank - 2)
        shape = [*spatial, x.shape[-1], self._channels]
        self.w = tf.Variable(self._w_init(shape, dtype), name="w")
        if self._has_bias:
            self.b = tf.Variable(tf.zeros([self._channels], dtype), name="b")

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        self._build(x)
        w = tf.convert_to_tensor(self.w)
        if self._weight_norm is not None:
            w = self._weight_norm(w, is_training)
        w = tf.cast(w, x.dtype)
        y = tf.matmul(x, w) if x.shape.rank == 2 else tf.nn.conv2d(x, w, 1, "SAME")
        return tf.nn.bias_add(y, tf.cast(self.b, x.dtype)) if self._has_bias else y


class ConditionalNorm(snt.Module):
    """Batch norm over all replicas, with a scale and an offset for each class.

    Dumoulin et al. 2017 (arXiv:1610.07629), equation 5.
    """

    def __init__(self, channels: int, name: str | None = None):
        super().__init__(name=name)
        self._norm = batch_norm.CrossReplicaBatchNorm(
            create_scale=False,
            create_offset=False,
            moving_mean=batch_norm.MovingAverage(_DECAY, start=0.0, name="moving_mean"),
            moving_variance=batch_norm.MovingAverage(_DECAY, start=1.0, name="moving_variance"),
            name="norm",
        )
        self._scale = Layer(channels, snt.initializers.Ones(), name="scale")
        self._offset = Layer(channels, snt.initializers.Zeros(), name="offset")

    def __call__(self, x: tf.Tensor, classes: tf.Tensor, is_training: bool) -> tf.Tensor:
        """[B, H, W, C] and [B, K], one in K, -> [B, H, W, C]."""
        scale = self._scale(classes, is_training)[:, None, None, :]  # [B, 1, 1, C]
        offset = self._offset(classes, is_training)[:, None, None, :]
        return self._norm(x, is_training, scale=scale, offset=offset)


class GeneratorBlock(snt.Module):
    """Twice norm, ReLU and 3x3, at twice the height and width."""

    def __init__(self, channels: int, in_channels: int, name: str | None = None):
        super().__init__(name=name)
        self._norms = [
            ConditionalNorm(in_channels, name="norm_0"),
            ConditionalNorm(channels, name="norm_1"),
        ]
        self._convs = [Layer(channels, _GLOROT_RELU, 3, name=f"conv_{i}") for i in range(2)]
        self._shortcut = Layer(channels, _GLOROT, name="shortcut")

    def __call__(self, x: tf.Tensor, classes: tf.Tensor, is_training: bool) -> tf.Tensor:
        y = double(tf.nn.relu(self._norms[0](x, classes, is_training)))
        y = self._convs[0](y, is_training)
        y = self._convs[1](tf.nn.relu(self._norms[1](y, classes, is_training)), is_training)
        return y + double(self._shortcut(x, is_training))  # 1x1, so the order is free.


class Generator(snt.Module):
    """Noise and classes to images."""

    def __init__(self, layout: Shape, width: int, image_channels: int, name: str | None = None):
        """Builds no variable yet.

        Args:
          layout: of the blocks.
          width: what its channels are multiples of.
          image_channels: 1 or 3.
          name: of the module.
        """
        super().__init__(name=name)
        channels = [multiple * width for multiple in layout.generator]
        self._first_shape = [-1, layout.side, layout.side, channels[0]]
        self._first = Layer(layout.side**2 * channels[0], _GLOROT, has_bias=True, name="first")
        self._blocks = [
            GeneratorBlock(after, before, name=f"block_{i}")
            for i, (before, after) in enumerate(itertools.pairwise(channels))
        ]
        self._norm = cross_replica_batch_norm("norm", snt.initializers.Ones())
        self._last = Layer(image_channels, _GLOROT, 3, has_bias=True, name="last")

    def __call__(self, noise: tf.Tensor, classes: tf.Tensor, is_training: bool) -> tf.Tensor:
        """[B, Z] and [B, K], one in K, of one type, -> [B, H, W, C] in [-1, 1]."""
        x = tf.reshape(self._first(noise, is_training), self._first_shape)
        for block in self._blocks:
            x = block(x, classes, is_training)
        x = tf.nn.relu(self._norm(x, is_training))
        return tf.tanh(self._last(x, is_training))


class DiscriminatorBlock(snt.Module):
    """ReLU and 3x3 twice, then the mean of each 2x2 if it halves height and width."""

    def __init__(
        self,
        channels: int,
        is_first: bool,
        is_halving: bool,
        has_shortcut: bool,
        name: str | None = None,
    ):
        super().__init__(name=name)
        self._is_first = is_first
        self._is_halving = is_halving
        self._has_shortcut = has_shortcut
        self._convs = [_normalised(channels, _GLOROT_RELU, 3, name=f"conv_{i}") for i in range(2)]
        if has_shortcut:
            self._shortcut = _normalised(channels, _GLOROT, name="shortcut")

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        y = x if self._is_first else tf.nn.relu(x)  # Images are no sums of a residual layer.
        y = self._convs[1](tf.nn.relu(self._convs[0](y, is_training)), is_training)
        if self._is_halving:
            x, y = halve(x), halve(y)
        return y + (self._shortcut(x, is_training) if self._has_shortcut else x)


class Discriminator(snt.Module):
    """Images and classes to scores; every weight is spectrally normalised."""

    def __init__(self, layout: Shape, width: int, name: str | None = None):
        """Builds no variable yet. Arguments as for `Generator`."""
        super().__init__(name=name)
        channels = [multiple * width for multiple in layout.discriminator]
        self._blocks = [
            DiscriminatorBlock(
                after,
                is_first=not i,
                is_halving=i < layout.num_halvings,
                has_shortcut=i < layout.num_halvings or after != channels[i - 1],
                name=f"block_{i}",
            )
            for i, after in enumerate(channels)
        ]
        self._linear = _normalised(1, _GLOROT, name="linear")
        self._embedding = Layer(
            channels[-1], _GLOROT, weight_norm=SpectralNorm(name="spectral"), name="embedding"
        )

    def __call__(self, images: tf.Tensor, classes: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Scores, [B] float32 (or float64).

        Args:
          images: [B, H, W, C] in [-1, 1], of the type to compute in.
          classes: [B, K] of any floating type, one in K.
          is_training: whether to iterate spectral norms; see `spectral_norm`.
        """
        x = images
        for block in self._blocks:
            x = block(x, is_training)
        # The sum over the positions, and what follows, in float32.
        dtype = tf.float64 if x.dtype == tf.float64 else tf.float32
        features = tf.reduce_sum(tf.cast(tf.nn.relu(x), dtype), axis=[1, 2])  # [B, F]
        embedded = self._embedding(tf.cast(classes, dtype), is_training)  # [B, F]
        return projection(features, self._linear(features, is_training)[:, 0], embedded)


def projection(features: tf.Tensor, scores: tf.Tensor, embedded: tf.Tensor) -> tf.Tensor:
    """`psi(phi(x)) + y^T V phi(x)`: Miyato & Koyama 2018, equation 7.

    Args:
      features: [B, F], phi(x).
      scores: [B], psi of them.
      embedded: [B, F], `y^T V`.

    Returns:
      [B].
    """
    return scores + tf.reduce_sum(embedded * features, axis=1)


def double(x: tf.Tensor) -> tf.Tensor:
    """Every pixel four times: [B, H, W, C] -> [B, 2H, 2W, C]."""
    _, height, width, channels = x.shape
    x = tf.broadcast_to(x[:, :, None, :, None, :], [tf.shape(x)[0], height, 2, width, 2, channels])
    return tf.reshape(x, [-1, 2 * height, 2 * width, channels])


def halve(x: tf.Tensor) -> tf.Tensor:
    """The mean of each 2x2 pixels: [B, 2H, 2W, C] -> [B, H, W, C]."""
    return tf.nn.avg_pool2d(x, 2, 2, "VALID")


def _normalised(
    channels: int, w_init: snt.initializers.Initializer, size: int = 1, name: str | None = None
) -> Layer:
    return Layer(channels, w_init, size, True, SpectralNorm(name="spectral"), name)
