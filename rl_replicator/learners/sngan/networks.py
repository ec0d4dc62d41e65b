"""Residual networks of Miyato & Koyama 2018 (arXiv:1802.05637), figures 13 and 14.

Images are NHWC. The layers compute in the dtype of the noise or the images. Variables are float64
if that is float64, and float32 otherwise.

The generator's convolutions have no biases, because the batch norm after them removes any bias.
Their gradients would be rounding errors, which Adam would scale up to full steps.
"""

import dataclasses
import itertools

import sonnet as snt
import tensorflow as tf

from rl_replicator.learners.normalization import SpectralNorm, cross_replica_batch_norm

_SMALLEST_SIDE = 4
_LARGEST_MULTIPLE = 16
# Glorot & Bengio 2010; with twice the variance for layers next to a ReLU.
_GLOROT = snt.initializers.VarianceScaling(1.0, "fan_avg", "uniform")
_GLOROT_RELU = snt.initializers.VarianceScaling(2.0, "fan_avg", "uniform")


@dataclasses.dataclass(frozen=True)
class Shape:
    """The layout of both networks for one image size.

    Attributes:
      side: height and width of the generator's first feature map.
      generator: channels of that map and of each block's output, in multiples of the width.
      discriminator: channels of each block's output, in multiples of the width.
      num_halvings: number of the discriminator's first blocks that halve height and width.
    """

    side: int
    generator: tuple[int, ...]
    discriminator: tuple[int, ...]
    num_halvings: int


def layout(image_size: int) -> Shape:
    """Returns the layout of the networks for an image size.

    The generator doubles a first feature map of 4x4 to 7x7 once per block. With a width of 64, the
    networks for 128x128 and 64x64 are those of Miyato & Koyama 2018, and those for 32x32 are of
    Miyato et al. 2018 (arXiv:1802.05957), table 4.

    Args:
      image_size: height and width of the images.
    """
    if image_size == 32:
        return Shape(4, (4, 4, 4, 4), (2, 2, 2, 2), num_halvings=2)
    side, doublings = image_size, 0
    while side % 2 == 0 and side >= 2 * _SMALLEST_SIDE:
        side, doublings = side // 2, doublings + 1
    multiples = [min(2**i, _LARGEST_MULTIPLE) for i in range(doublings + 1)]
    return Shape(side, tuple(multiples[::-1]), tuple(multiples), doublings)


class Layer(snt.Module):
    """A dense layer for inputs of two axes; a convolution with "SAME" padding for four axes.

    Attributes:
      weight_norm: normalises the weight; None for no normalisation.
    """

    def __init__(
        self,
        channels: int,
        w_init: snt.initializers.Initializer,
        size: int = 1,
        has_bias: bool = False,
        weight_norm: SpectralNorm | None = None,
        name: str | None = None,
    ):
        """Creates no variable yet.

        Args:
          channels: number of output channels.
          w_init: initialises the weight.
          size: height and width of a convolution's kernel.
          has_bias: whether the layer adds a bias.
          weight_norm: normalises the weight; None for no normalisation.
          name: name of the module.
        """
        super().__init__(name=name)
        self._channels, self._size, self._w_init = channels, size, w_init
        self._has_bias, self.weight_norm = has_bias, weight_norm

    @snt.once
    def _build(self, x: tf.Tensor) -> None:
        dtype = tf.float64 if x.dtype == tf.float64 else tf.float32
        spatial = [self._size] * (x.shape.rank - 2)
        shape = [*spatial, x.shape[-1], self._channels]
        self.w = tf.Variable(self._w_init(shape, dtype), name="w")
        if self._has_bias:
            self.b = tf.Variable(tf.zeros([self._channels], dtype), name="b")

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Maps [..., C] to [..., channels] of the same dtype.

        Args:
          x: [B, C] or [B, H, W, C].
          is_training: see `SpectralNorm.__call__`.
        """
        self._build(x)
        w = tf.convert_to_tensor(self.w)
        if self.weight_norm is not None:
            w = self.weight_norm(w, is_training)
        w = tf.cast(w, x.dtype)
        y = tf.matmul(x, w) if x.shape.rank == 2 else tf.nn.conv2d(x, w, 1, "SAME")
        return tf.nn.bias_add(y, tf.cast(self.b, x.dtype)) if self._has_bias else y


class ConditionalNorm(snt.Module):
    """Batch norm over all replicas, with a scale and an offset for each class.

    Dumoulin et al. 2017 (arXiv:1610.07629), equation 5.
    """

    def __init__(self, channels: int, name: str | None = None):
        """Creates no variable yet.

        Args:
          channels: number of channels of the input.
          name: name of the module.
        """
        super().__init__(name=name)
        self._norm = cross_replica_batch_norm("norm")
        self._scale = Layer(channels, snt.initializers.Ones(), name="scale")
        self._offset = Layer(channels, snt.initializers.Zeros(), name="offset")

    def __call__(self, x: tf.Tensor, classes: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Normalises a batch.

        Args:
          x: [B, H, W, C].
          classes: one-hot, [B, K], of the dtype of `x`.
          is_training: whether to use, and to average, the statistics of the batch.

        Returns:
          A tensor of the shape and dtype of `x`.
        """
        scale = self._scale(classes, is_training)[:, None, None, :]  # [B, 1, 1, C]
        offset = self._offset(classes, is_training)[:, None, None, :]
        return self._norm(x, is_training, scale=scale, offset=offset)


class GeneratorBlock(snt.Module):
    """A residual block that doubles height and width: norm, ReLU and 3x3 convolution, twice."""

    def __init__(self, channels: int, in_channels: int, name: str | None = None):
        """Creates no variable yet.

        Args:
          channels: number of output channels.
          in_channels: number of input channels.
          name: name of the module.
        """
        super().__init__(name=name)
        self._norms = [
            ConditionalNorm(in_channels, name="norm_0"),
            ConditionalNorm(channels, name="norm_1"),
        ]
        self._convs = [Layer(channels, _GLOROT_RELU, 3, name=f"conv_{i}") for i in range(2)]
        self._shortcut = Layer(channels, _GLOROT, name="shortcut")

    def __call__(self, x: tf.Tensor, classes: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Maps [B, H, W, C] and one-hot classes, [B, K], to [B, 2H, 2W, channels]."""
        y = double(tf.nn.relu(self._norms[0](x, classes, is_training)))
        y = self._convs[0](y, is_training)
        y = self._convs[1](tf.nn.relu(self._norms[1](y, classes, is_training)), is_training)
        # A 1x1 convolution commutes with doubling; this order computes a quarter as much.
        return y + double(self._shortcut(x, is_training))


class Generator(snt.Module):
    """Maps noise and classes to images."""

    def __init__(self, layout: Shape, width: int, image_channels: int, name: str | None = None):
        """Creates no variable yet.

        Args:
          layout: layout of the blocks.
          width: number of channels by which the layout's multiples are multiplied.
          image_channels: 1 or 3.
          name: name of the module.
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
        """Generates images.

        Args:
          noise: [B, Z].
          classes: one-hot, [B, K], of the dtype of the noise.
          is_training: whether batch norm uses the statistics of the batch.

        Returns:
          [B, H, W, C] in [-1, 1], of the dtype of the noise.
        """
        x = tf.reshape(self._first(noise, is_training), self._first_shape)
        for block in self._blocks:
            x = block(x, classes, is_training)
        x = tf.nn.relu(self._norm(x, is_training))
        return tf.tanh(self._last(x, is_training))


class DiscriminatorBlock(snt.Module):
    """A residual block: ReLU and 3x3 convolution, twice, then 2x2 average pooling if it halves."""

    def __init__(
        self,
        channels: int,
        is_first: bool,
        is_halving: bool,
        has_shortcut: bool,
        name: str | None = None,
    ):
        """Creates no variable yet.

        Args:
          channels: number of output channels.
          is_first: whether the input is images.
          is_halving: whether the block halves height and width.
          has_shortcut: whether the shortcut is a 1x1 convolution, not the identity.
          name: name of the module.
        """
        super().__init__(name=name)
        self._is_first = is_first
        self._is_halving = is_halving
        self._has_shortcut = has_shortcut
        self._convs = [_normalised(channels, _GLOROT_RELU, 3, name=f"conv_{i}") for i in range(2)]
        if has_shortcut:
            self._shortcut = _normalised(channels, _GLOROT, name="shortcut")

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Maps [B, H, W, C] to [B, H, W, channels], or to half the height and width."""
        y = x if self._is_first else tf.nn.relu(x)  # A ReLU would discard half of an image's range.
        y = self._convs[1](tf.nn.relu(self._convs[0](y, is_training)), is_training)
        if self._is_halving:
            x, y = halve(x), halve(y)
        return y + (self._shortcut(x, is_training) if self._has_shortcut else x)


class Discriminator(snt.Module):
    """Maps images and classes to scores. Every weight is spectrally normalised."""

    def __init__(self, layout: Shape, width: int):
        """Creates no variable yet.

        Args:
          layout: layout of the blocks.
          width: number of channels by which the layout's multiples are multiplied.
        """
        super().__init__()
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
        """Scores images: `psi(phi(x)) + y^T V phi(x)`, Miyato & Koyama 2018, equation 7.

        Args:
          images: [B, H, W, C] in [-1, 1], of the dtype to compute in.
          classes: one-hot, [B, K], of any floating dtype.
          is_training: see `SpectralNorm.__call__`.

        Returns:
          [B] float64 for images in float64, otherwise float32.
        """
        x = images
        for block in self._blocks:
            x = block(x, is_training)
        # From the sum over positions on, not in bfloat16, which loses precision in sums.
        dtype = tf.float64 if x.dtype == tf.float64 else tf.float32
        features = tf.reduce_sum(tf.cast(tf.nn.relu(x), dtype), axis=[1, 2])  # phi(x), [B, F]
        embedded = self._embedding(tf.cast(classes, dtype), is_training)  # y^T V, [B, F]
        scores = self._linear(features, is_training)[:, 0]  # psi(phi(x)), [B]
        return scores + tf.reduce_sum(embedded * features, axis=1)


def double(x: tf.Tensor) -> tf.Tensor:
    """Repeats every pixel four times: maps [B, H, W, C] to [B, 2H, 2W, C]."""
    _, height, width, channels = x.shape
    # Reshaped, not indexed by None: TFLite's slices have at most five dimensions.
    x = tf.reshape(x, [-1, height, 1, width, 1, channels])
    x = tf.broadcast_to(x, [tf.shape(x)[0], height, 2, width, 2, channels])
    return tf.reshape(x, [-1, 2 * height, 2 * width, channels])


def halve(x: tf.Tensor) -> tf.Tensor:
    """Averages blocks of 2x2 pixels: maps [B, 2H, 2W, C] to [B, H, W, C]."""
    return tf.nn.avg_pool2d(x, 2, 2, "VALID")


def _normalised(
    channels: int, w_init: snt.initializers.Initializer, size: int = 1, name: str | None = None
) -> Layer:
    return Layer(channels, w_init, size, True, SpectralNorm(name="spectral"), name)
