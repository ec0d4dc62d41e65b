"""ResNet v1.5: He et al. 2015 (arXiv:1512.03385), with the stride of a bottleneck in its 3x3 layer.

Images are NHWC. The layers compute in the dtype of the images. Variables and batch statistics are
always float32.
"""

from collections.abc import Callable, Sequence

import sonnet as snt
import tensorflow as tf

# Depth -> number of blocks in each of the four stages, and whether they are bottlenecks.
_STAGES = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
}
# Output channels of a bottleneck, relative to the channels of its 3x3 layer.
_EXPANSION = 4

# Maps (name, scale_init) to a module that is called with (x, is_training).
MakeNorm = Callable[[str, snt.initializers.Initializer], snt.Module]


class Conv(snt.Module):
    """A convolution without bias, with "SAME" padding and He et al.'s fan-out initialisation."""

    def __init__(self, channels: int, size: int, stride: int = 1, name: str | None = None):
        """Creates no variable yet.

        Args:
          channels: number of output channels.
          size: height and width of the kernel.
          stride: stride in both directions.
          name: name of the module.
        """
        super().__init__(name=name)
        self._channels = channels
        self._size = size
        self._stride = stride
        self._w_init = snt.initializers.VarianceScaling(2.0, "fan_out", "truncated_normal")

    @snt.once
    def _build(self, in_channels: int) -> None:
        shape = [self._size, self._size, in_channels, self._channels]
        self.w = tf.Variable(self._w_init(shape, tf.float32), name="w")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [B, H, W, C] to [B, ceil(H / stride), ceil(W / stride), channels]."""
        self._build(x.shape[-1])
        return tf.nn.conv2d(x, tf.cast(self.w, x.dtype), self._stride, "SAME")


class Block(snt.Module):
    """Residual block `relu(x + f(x))`: f is two 3x3 layers, or 1x1, 3x3 and 1x1 (a bottleneck)."""

    def __init__(
        self,
        channels: int,
        stride: int,
        has_projection: bool,
        is_bottleneck: bool,
        make_norm: MakeNorm,
        name: str | None = None,
    ):
        """Creates no variable yet.

        Args:
          channels: output channels of the 3x3 layers.
          stride: stride of the block.
          has_projection: whether a 1x1 convolution projects the shortcut, because the block changes
            the shape.
          is_bottleneck: whether f is a bottleneck.
          make_norm: makes the normalisation of a layer.
          name: name of the module.
        """
        super().__init__(name=name)
        ones, zeros = snt.initializers.Ones(), snt.initializers.Zeros()
        if is_bottleneck:
            out = _EXPANSION * channels
            self._convs = [
                Conv(channels, 1, name="conv_0"),
                Conv(channels, 3, stride, name="conv_1"),
                Conv(out, 1, name="conv_2"),
            ]
        else:
            out = channels
            self._convs = [
                Conv(channels, 3, stride, name="conv_0"),
                Conv(channels, 3, name="conv_1"),
            ]
        # With a last scale of 0, a block starts as the identity: Goyal et al. 2017, section 5.1.
        last = len(self._convs) - 1
        self._norms = [
            make_norm(f"norm_{i}", zeros if i == last else ones) for i in range(len(self._convs))
        ]
        if has_projection:
            self._shortcut = Conv(out, 1, stride, name="shortcut")
            self._shortcut_norm = make_norm("shortcut_norm", ones)
        self._has_projection = has_projection

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Maps [B, H, W, C] to [B, H / stride, W / stride, C_out] of the same dtype."""
        shortcut = x
        if self._has_projection:
            shortcut = self._shortcut_norm(self._shortcut(x), is_training)
        for conv, norm in zip(self._convs[:-1], self._norms[:-1], strict=True):
            x = tf.nn.relu(norm(conv(x), is_training))
        return tf.nn.relu(shortcut + self._norms[-1](self._convs[-1](x), is_training))


class ResNet(snt.Module):
    """A residual network that maps images to logits."""

    def __init__(
        self,
        depth: int,
        num_classes: int,
        make_stem: "Callable[[int, MakeNorm], snt.Module]",
        make_norm: MakeNorm,
        width: int = 64,
        name: str | None = None,
    ):
        """Creates no variable yet.

        Args:
          depth: number of layers: 18, 34, 50 or 101.
          num_classes: number of logits.
          make_stem: `ImageNetStem` or `SmallImageStem`.
          make_norm: makes the normalisation of a layer.
          width: channels of the first stage; each later stage doubles them.
          name: name of the module.
        """
        super().__init__(name=name)
        blocks, is_bottleneck = _STAGES[depth]
        self._stem = make_stem(width, make_norm)
        self._blocks = [
            Block(
                channels=width * 2**stage,
                stride=2 if stage and not i else 1,
                has_projection=not i and (is_bottleneck or stage > 0),
                is_bottleneck=is_bottleneck,
                make_norm=make_norm,
                name=f"stage_{stage}_block_{i}",
            )
            for stage, count in enumerate(blocks)
            for i in range(count)
        ]
        # Goyal et al. 2017: a normal distribution of deviation 0.01 for the last layer.
        self._logits = snt.Linear(
            num_classes, w_init=snt.initializers.TruncatedNormal(stddev=0.01), name="logits"
        )

    def __call__(self, images: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Returns the logits, [B, num_classes] float32. See `classify`."""
        return self.classify(images, is_training)[1]

    def classify(self, images: tf.Tensor, is_training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes features and logits.

        Args:
          images: [B, H, W, C] of any floating dtype.
          is_training: whether batch norm uses the statistics of the batch.

        Returns:
          The inputs of the last layer, [B, F] float32, and the logits, [B, num_classes] float32.
        """
        x = self._stem(images, is_training)
        for block in self._blocks:
            x = block(x, is_training)
        # From the mean over positions on, everything is float32: sums lose precision in bfloat16.
        features = tf.reduce_mean(tf.cast(x, tf.float32), axis=[1, 2])
        return features, self._logits(features)


class ImageNetStem(snt.Module):
    """First layers for large images: 7x7 of stride 2, then 3x3 max pooling of stride 2."""

    def __init__(self, channels: int, make_norm: MakeNorm):
        """Creates no variable yet.

        Args:
          channels: number of output channels.
          make_norm: makes the normalisation.
        """
        super().__init__(name="stem")
        self._conv = Conv(channels, 7, 2, name="conv")
        self._norm = make_norm("norm", snt.initializers.Ones())

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Maps [B, H, W, C] to [B, H / 4, W / 4, channels]."""
        x = tf.nn.relu(self._norm(self._conv(x), is_training))
        return tf.nn.max_pool2d(x, ksize=3, strides=2, padding="SAME")


class SmallImageStem(snt.Module):
    """First layer for small images: 3x3 of stride 1, which keeps height and width."""

    def __init__(self, channels: int, make_norm: MakeNorm):
        """Creates no variable yet.

        Args:
          channels: number of output channels.
          make_norm: makes the normalisation.
        """
        super().__init__(name="stem")
        self._conv = Conv(channels, 3, name="conv")
        self._norm = make_norm("norm", snt.initializers.Ones())

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Maps [B, H, W, C] to [B, H, W, channels]."""
        return tf.nn.relu(self._norm(self._conv(x), is_training))


def decayed(variables: Sequence[tf.Variable]) -> list[bool]:
    """Returns which variables have weight decay: weights, but not biases, scales and offsets.

    Weights have two or four axes, and all others have one.

    Args:
      variables: trainable variables.

    Returns:
      One flag for each variable.
    """
    return [variable.shape.rank > 1 for variable in variables]
