"""The convolutional networks of pixel agents, from stacked frames to features.

Parameters are float32. The convolutions may compute in bfloat16, which CPUs with AMX do several
times faster; the layers after them, and all losses, are float32.
"""

import functools
import math
from collections.abc import Callable, Sequence

import sonnet as snt
import tensorflow as tf

from agents.registry import find_part

# (filters, kernel, stride) of each layer. "small" halves the frame twice and then keeps its
# resolution as DrQ-v2 does: an eighth of the arithmetic at 64 x 64.
_PLAIN = {
    "small": ((32, 3, 2), (32, 3, 2), (32, 3, 1), (32, 3, 1)),
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "drq_v2": ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1)),
}
_IMPALA_FILTERS = (16, 32, 32)


def make_encoder(kind: str, dtype: tf.DType, name: str) -> snt.Module:
    """Makes a module from frames [B, H, W, C] to float32 features [B, N].

    The values of frames are 0 to 255. An actor's frames are uint8, a learner's already of `dtype`.

    Args:
      kind: "small"; "nature" (Mnih et al. 2015); "drq_v2" (Yarats et al. 2021, arXiv:2107.09645);
        "impala", the residual network of Espeholt et al. 2018 (arXiv:1802.01561); or the import
        path of a function that is called with (dtype, name) and returns such a module.
      dtype: dtype of the convolutions.
      name: name of the module.

    Raises:
      ConfigError: if there is no such encoder.
    """
    encoder = find_encoder(kind)(dtype, name)
    if isinstance(encoder, snt.Module):
        snt.allow_empty_variables(encoder)  # Hand-written features have none.
    return encoder


def find_encoder(kind: str) -> Callable[[tf.DType, str], snt.Module]:
    """Returns the function that makes an encoder of a kind; see `make_encoder`.

    Raises:
      ConfigError: if there is no such encoder.
    """
    return find_part(kind, _ENCODERS, "agent.encoder")


def smallest_frame(kind: str) -> int:
    """Returns the smallest height and width in pixels that an encoder accepts; 1 if unknown."""
    size = 1
    for _, kernel, stride in reversed(_PLAIN.get(kind, ())):
        size = (size - 1) * stride + kernel
    return size


@snt.allow_empty_variables
class IdentityEncoder(snt.Module):
    """Returns its input, for observations that are features already: [B, N] float32."""

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> the same."""
        return observation


class ConvEncoder(snt.Module):
    """Blocks of convolutions on frames scaled to [-0.5, 0.5]; returns the last maps, flattened."""

    def __init__(
        self, make_blocks: Sequence[Callable[..., snt.Module]], dtype: tf.DType, name: str
    ):
        """Makes the blocks.

        Args:
          make_blocks: each is called with `name=` and `input_scale=`, a factor on its input, and
            returns a module from maps [B, H, W, C] to such maps.
          dtype: dtype in which the blocks compute.
          name: name of the module.
        """
        super().__init__(name=name)
        self._blocks = [
            make(name=f"block_{i}", input_scale=1 / 255 if i == 0 else 1.0)
            for i, make in enumerate(make_blocks)
        ]
        self._dtype = dtype

    def __call__(self, frames: tf.Tensor) -> tf.Tensor:
        # Exact in bfloat16. The first block divides by 255.
        x = tf.cast(frames, self._dtype) - 127.5  # [B, H, W, C]
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
        input_scale: float = 1.0,
        name: str = "convolution",
    ):
        super().__init__(name=name)
        self._filters, self._kernel = filters, kernel
        self._stride, self._padding = stride, padding
        self._input_scale = input_scale

    @snt.once
    def _create(self, channels: int) -> None:
        # As in DrQ-v2: keeps the variance through ReLU.
        init = snt.initializers.Orthogonal(math.sqrt(2))
        shape = [self._kernel, self._kernel, channels, self._filters]
        self._w = tf.Variable(init(shape, tf.float32), name="w")
        self._b = tf.Variable(tf.zeros([self._filters]), name="b")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        self._create(x.shape[-1])
        # Scales the weights, of which there are far fewer than numbers in the input.
        w = self._w if self._input_scale == 1.0 else self._w * self._input_scale
        w, b = tf.cast(w, x.dtype), tf.cast(self._b, x.dtype)
        return tf.nn.bias_add(tf.nn.conv2d(x, w, self._stride, self._padding), b)


class ResidualSection(snt.Module):
    """A convolution, a pooling that halves the maps, and two residual blocks (IMPALA)."""

    def __init__(self, filters: int, input_scale: float, name: str):
        super().__init__(name=name)
        self._first = Convolution(filters, 3, 1, "SAME", input_scale, name="first")
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


def _make_plain(layers: Sequence[tuple[int, int, int]], dtype: tf.DType, name: str) -> ConvEncoder:
    return ConvEncoder([functools.partial(Convolution, *layer) for layer in layers], dtype, name)


def _make_impala(dtype: tf.DType, name: str) -> ConvEncoder:
    sections = [functools.partial(ResidualSection, filters) for filters in _IMPALA_FILTERS]
    return ConvEncoder(sections, dtype, name)


_ENCODERS: dict[str, Callable[[tf.DType, str], snt.Module]] = {
    **{kind: functools.partial(_make_plain, layers) for kind, layers in _PLAIN.items()},
    "impala": _make_impala,
}
