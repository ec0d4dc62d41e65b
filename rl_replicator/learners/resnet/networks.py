"""ResNet v1.5: He et al. 2015 (arXiv:1512.03385), with the stride of a bottleneck in its 3x3 layer.

Images are NHWC. The layers compute in the dtype of the images. Variables and batch statistics are
always float32.
"""

from collections.abc import Callable, Sequence

import sonnet as snt
import tensorflow as tf

# Depth -> number of blocks in each of the four stages, and whether they are bottlenecks.
STAGES = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
}
# Output channels of a bottleneck, relative to the channels of its 3x3 layer.
_EXPANSION = 4
_ONES, _ZEROS = snt.initializers.Ones(), snt.initializers.Zeros()

# Maps (name, scale_init) to a module that is called with (x, is_training).
MakeNorm = Callable[[str, snt.initializers.Initializer], snt.Module]


class Conv(snt.Module):
    """A convolution without bias and its norm, with "SAME" padding, and He et al.'s fan-out
    initialisation.

    Attributes:
      w: the kernel, float32 whatever the dtype of the input.
    """

    def __init__(
        self,
        channels: int,
        size: int,
        stride: int,
        make_norm: MakeNorm,
        scale_init: snt.initializers.Initializer = _ONES,
        name: str | None = None,
    ):
        """Creates no variable yet.

        Args:
          channels: number of output channels.
          size: height and width of the kernel.
          stride: stride in both directions.
          make_norm: makes the norm.
          scale_init: initialises the scale of the norm.
          name: name of the module.
        """
        super().__init__(name=name)
        self._channels, self._size, self._stride = channels, size, stride
        self._norm = make_norm("norm", scale_init)

    @snt.once
    def _build(self, in_channels: int) -> None:
        init = snt.initializers.VarianceScaling(2.0, "fan_out", "truncated_normal")
        shape = [self._size, self._size, in_channels, self._channels]
        self.w = tf.Variable(init(shape, tf.float32), name="w")

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Maps [B, H, W, C] to [B, ceil(H / stride), ceil(W / stride), channels]."""
        self._build(x.shape[-1])
        x = tf.nn.conv2d(x, tf.cast(self.w, x.dtype), self._stride, "SAME")
        return self._norm(x, is_training)


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
          make_norm: makes the norm of a layer.
          name: name of the module.
        """
        super().__init__(name=name)
        out = _EXPANSION * channels if is_bottleneck else channels
        sizes = [(channels, 3, stride), (channels, 3, 1)]
        if is_bottleneck:
            sizes = [(channels, 1, 1), (channels, 3, stride), (out, 1, 1)]
        # With a last scale of 0, a block starts as the identity: Goyal et al. 2017, section 5.1.
        self._layers = [
            Conv(*size, make_norm, _ZEROS if size is sizes[-1] else _ONES, f"conv_{i}")
            for i, size in enumerate(sizes)
        ]
        self._shortcut = Conv(out, 1, stride, make_norm, name="shortcut")
        self._has_projection = has_projection

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Maps [B, H, W, C] to [B, H / stride, W / stride, C_out] of the same dtype."""
        shortcut = self._shortcut(x, is_training) if self._has_projection else x
        for layer in self._layers[:-1]:
            x = tf.nn.relu(layer(x, is_training))
        return tf.nn.relu(shortcut + self._layers[-1](x, is_training))


class ResNet(snt.Module):
    """A residual network that maps images to features and logits."""

    def __init__(
        self,
        depth: int,
        num_classes: int,
        stem: str,
        make_norm: MakeNorm,
        width: int = 64,
    ):
        """Creates no variable yet.

        Args:
          depth: number of layers, a key of `STAGES`.
          num_classes: number of logits.
          stem: first layers: "imagenet", 7x7 of stride 2 and max pooling; or "small", 3x3.
          make_norm: makes the norm of a layer.
          width: channels of the first stage; each later stage doubles them.
        """
        super().__init__()
        blocks, is_bottleneck = STAGES[depth]
        self._is_large = stem == "imagenet"
        size, stride = (7, 2) if self._is_large else (3, 1)
        self._stem = Conv(width, size, stride, make_norm, name="stem")
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

    def __call__(self, images: tf.Tensor, is_training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes features and logits.

        Args:
          images: [B, H, W, C] of any floating dtype.
          is_training: whether batch norm uses the statistics of the batch.

        Returns:
          The inputs of the last layer, [B, F] float32, and the logits, [B, num_classes] float32.
        """
        x = tf.nn.relu(self._stem(images, is_training))
        if self._is_large:
            x = tf.nn.max_pool2d(x, ksize=3, strides=2, padding="SAME")
        for block in self._blocks:
            x = block(x, is_training)
        # From the mean over positions on, everything is float32: sums lose precision in bfloat16.
        features = tf.reduce_mean(tf.cast(x, tf.float32), axis=[1, 2])
        return features, self._logits(features)


def decayed(variables: Sequence[tf.Variable]) -> list[bool]:
    """Returns which variables have weight decay: weights, but not biases, scales and offsets.

    Weights have two or four axes, and all others have one.

    Args:
      variables: trainable variables.

    Returns:
      One flag for each variable.
    """
    return [variable.shape.rank > 1 for variable in variables]
