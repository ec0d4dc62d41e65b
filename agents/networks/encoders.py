"""From stacked frames to features: the convolutional networks of pixel agents.

Parameters are float32. The convolutions may compute in bfloat16, which CPUs with AMX do several
times faster; what follows them, and every loss, is float32.
"""

import functools
import math
from collections.abc import Callable, Sequence

import sonnet as snt
import tensorflow as tf

# (filters, kernel, stride) of each layer. "small" halves the picture twice and then keeps places
# apart as DrQ-v2 does: an eighth of its arithmetic at 64 x 64.
_PLAIN = {
    "small": ((32, 3, 2), (32, 3, 2), (32, 3, 1), (32, 3, 1)),
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "drq_v2": ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1)),
}
_IMPALA_FILTERS = (16, 32, 32)


def make_encoder(kind: str, dtype: tf.DType, name: str) -> snt.Module:
    """A module from uint8 frames [B, H, W, C] to float32 features [B, N].

    Args:
      kind: "small"; "nature" (Mnih et al. 2015); "drq_v2" (Yarats et al. 2021, arXiv:2107.09645);
        or "impala", the residual network of Espeholt et al. 2018 (arXiv:1802.01561).
      dtype: in which convolutions compute.
      name: of the module.

    Raises:
      ValueError: if there is no such kind.
    """
    kinds = [*_PLAIN, "impala"]
    if kind not in kinds:
        raise ValueError(f"expected an encoder of {kinds}, got {kind!r}")
    if kind == "impala":
        return ConvEncoder(
            [functools.partial(ResidualSection, filters) for filters in _IMPALA_FILTERS],
            dtype,
            name,
        )
    return ConvEncoder(
        [functools.partial(Convolution, *layer) for layer in _PLAIN[kind]], dtype, name
    )


def smallest_frame(kind: str) -> int:
    """Pixels in each direction that an encoder needs at least."""
    size = 1
    for _, kernel, stride in reversed(_PLAIN.get(kind, ())):
        size = (size - 1) * stride + kernel
    return size


class ConvEncoder(snt.Module):
    """Frames in [-0.5, 0.5] through blocks of convolutions; their last maps, flattened."""

    def __init__(
        self, make_blocks: Sequence[Callable[..., snt.Module]], dtype: tf.DType, name: str
    ):
        """Args:
        make_blocks: each is called with `name=`, and gives maps [B, H, W, C] from such maps.
        dtype: in which the blocks compute.
        name: of the module.
        """
        super().__init__(name=name)
        self._blocks = [make(name=f"block_{i}") for i, make in enumerate(make_blocks)]
        self._dtype = dtype

    def __call__(self, frames: tf.Tensor) -> tf.Tensor:
        x = tf.cast(frames, self._dtype) / 255 - 0.5  # [B, H, W, C]
        for block in self._blocks:
            x = tf.nn.relu(block(x))
        size = math.prod(x.shape[1:])
        return tf.cast(tf.reshape(x, [-1, size]), tf.float32)


class Convolution(snt.Module):
    """A convolution without activation that computes in the dtype of its input."""

    def __init__(
        self,
        filters: int,
        kernel: int,
        stride: int,
        padding: str = "VALID",
        name: str = "convolution",
    ):
        super().__init__(name=name)
        self._filters, self._kernel = filters, kernel
        self._stride, self._padding = stride, padding

    @snt.once
    def _create(self, channels: int) -> None:
        # As in DrQ-v2: keeps the variance of what rectifiers let through.
        init = snt.initializers.Orthogonal(math.sqrt(2))
        shape = [self._kernel, self._kernel, channels, self._filters]
        self._w = tf.Variable(init(shape, tf.float32), name="w")
        self._b = tf.Variable(tf.zeros([self._filters]), name="b")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        self._create(x.shape[-1])
        w, b = tf.cast(self._w, x.dtype), tf.cast(self._b, x.dtype)
        return tf.nn.bias_add(tf.nn.conv2d(x, w, self._stride, self._padding), b)


class ResidualSection(snt.Module):
    """A convolution, a pooling that halves the maps, and two residual blocks (IMPALA)."""

    def __init__(self, filters: int, name: str = "section"):
        super().__init__(name=name)
        self._first = Convolution(filters, 3, 1, "SAME", name="first")
        self._residuals = [
            [Convolution(filters, 3, 1, "SAME", name=f"residual_{i}_{j}") for j in range(2)]
            for i in range(2)
        ]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        x = tf.nn.max_pool2d(self._first(x), 3, 2, "SAME")
        for convolutions in self._residuals:
            y = x
            for convolution in convolutions:
                y = convolution(tf.nn.relu(y))
            x += y
        return x
