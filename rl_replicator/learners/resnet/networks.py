"""ResNet v1.5: He et al. 2015 (arXiv:1512.03385), with the stride of a bottleneck in its 3x3 layer.

Images are NHWC. Variables are float32 whatever the type that the layers compute in, which is that
of the images; statistics of batches are float32 too.
"""

from collections.abc import Callable, Sequence

import sonnet as snt
import tensorflow as tf

# Blocks in each of the four stages, and whether they are bottlenecks.
_STAGES = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
}
DEPTHS = tuple(_STAGES)
_EXPANSION = 4

# (name, scale_init) -> a module called with (x, is_training).
MakeNorm = Callable[[str, snt.initializers.Initializer], snt.Module]


class Conv(snt.Module):
    """A convolution without bias, "SAME" padding, initialised after He et al. 2015, fan-out."""

    def __init__(self, channels: int, size: int, stride: int = 1, name: str | None = None):
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
        self._build(x.shape[-1])
        return tf.nn.conv2d(x, tf.cast(self.w, x.dtype), self._stride, "SAME")


class Block(snt.Module):
    """`relu(x + f(x))`, where f is two 3x3 layers, or 1x1, 3x3 and 1x1 (a bottleneck)."""

    def __init__(
        self,
        channels: int,
        stride: int,
        has_projection: bool,
        is_bottleneck: bool,
        make_norm: MakeNorm,
        name: str | None = None,
    ):
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
        # With the last scale at 0 a block begins as the identity: Goyal et al. 2017, section 5.1.
        last = len(self._convs) - 1
        self._norms = [
            make_norm(f"norm_{i}", zeros if i == last else ones) for i in range(len(self._convs))
        ]
        if has_projection:
            self._shortcut = Conv(out, 1, stride, name="shortcut")
            self._shortcut_norm = make_norm("shortcut_norm", ones)
        self._has_projection = has_projection

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        shortcut = x
        if self._has_projection:
            shortcut = self._shortcut_norm(self._shortcut(x), is_training)
        for conv, norm in zip(self._convs[:-1], self._norms[:-1], strict=True):
            x = tf.nn.relu(norm(conv(x), is_training))
        return tf.nn.relu(shortcut + self._norms[-1](self._convs[-1](x), is_training))


class ResNet(snt.Module):
    """Images to logits."""

    def __init__(
        self,
        depth: int,
        num_classes: int,
        make_stem: "Callable[[int, MakeNorm], snt.Module]",
        make_norm: MakeNorm,
        width: int = 64,
        name: str | None = None,
    ):
        """Builds no variable yet.

        Args:
          depth: 18, 34, 50 or 101.
          num_classes: of the logits.
          make_stem: `ImageNetStem` or `SmallImageStem`.
          make_norm: the normalisation of every layer.
          width: channels of the first stage; each later one doubles them.
          name: of the module.
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
        """[B, H, W, C] of any floating type -> [B, num_classes] float32 logits."""
        return self.classify(images, is_training)[1]

    def classify(self, images: tf.Tensor, is_training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """What the last layer sees, [B, F] float32, and the logits."""
        x = self._stem(images, is_training)
        for block in self._blocks:
            x = block(x, is_training)
        # The mean over the positions, and what follows, in float32.
        features = tf.reduce_mean(tf.cast(x, tf.float32), axis=[1, 2])
        return features, self._logits(features)


class ImageNetStem(snt.Module):
    """7x7 of stride 2, then the largest of each 3x3, of stride 2: 224x224 to 56x56."""

    def __init__(self, channels: int, make_norm: MakeNorm):
        super().__init__(name="stem")
        self._conv = Conv(channels, 7, 2, name="conv")
        self._norm = make_norm("norm", snt.initializers.Ones())

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        x = tf.nn.relu(self._norm(self._conv(x), is_training))
        return tf.nn.max_pool2d(x, ksize=3, strides=2, padding="SAME")


class SmallImageStem(snt.Module):
    """3x3 of stride 1: images of about 32x32 keep their size."""

    def __init__(self, channels: int, make_norm: MakeNorm):
        super().__init__(name="stem")
        self._conv = Conv(channels, 3, name="conv")
        self._norm = make_norm("norm", snt.initializers.Ones())

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        return tf.nn.relu(self._norm(self._conv(x), is_training))


def decayed(variables: Sequence[tf.Variable]) -> list[bool]:
    """Which variables weight decay is for: not the norms' scales and offsets, not biases.

    These have one axis; weights have two or four.
    """
    return [variable.shape.rank > 1 for variable in variables]
