"""The convolutional networks of pixel agents, from stacked frames to features.

Parameters are float32. The convolutions may compute in bfloat16, which CPUs with AMX do several
times faster; the layers after them, and all losses, are float32.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sonnet as snt
import tensorflow as tf

from agents.registry import features_of, find_part
from rl_replicator import collectives
from rl_replicator.collectives.randomness import uniform_integers

# (filters, kernel, stride) of each layer. "small" halves the frame twice and then keeps its
# resolution as DrQ-v2 does: an eighth of the arithmetic at 64 x 64.
_PLAIN = {
    "small": ((32, 3, 2), (32, 3, 2), (32, 3, 1), (32, 3, 1)),
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "drq_v2": ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1)),
    "mrq": ((32, 3, 2), (32, 3, 2), (32, 3, 2), (32, 3, 1)),
}
_IMPALA_FILTERS = (16, 32, 32)
# Largest size of a normalised value. A sensor that has been constant so far may deviate by any
# number of its standard deviations.
_MAX = 10.0
# Added to the variance: a dimension that hardly ever changes is scaled up by at most 100.
_EPSILON = 1e-4
# Largest size of a value in the moments. The squares of larger ones may overflow float32, and then
# no later observation could make the variance finite again.
_MAX_IN_MOMENTS = 1e15


def make_encoder(kind: str, dtype: tf.DType, name: str) -> snt.Module:
    """Makes a module from frames [B, H, W, C] to float32 features [B, N].

    The values of frames are 0 to 255. An actor's frames are uint8, a learner's already of `dtype`.

    Args:
      kind: "small"; "nature" (Mnih et al. 2015); "drq_v2" (Yarats et al. 2021, arXiv:2107.09645);
        "mrq" (Fujimoto et al. 2025, arXiv:2501.16142);
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
    """Returns its input, for observations that are features already: [B, N] float32.

    Of a longer input, it returns the first N numbers: the others are a mask of actions.
    """

    def __init__(self, name: str = "encoder", size: int | None = None):
        """Makes an encoder of N = `size` features; None for all."""
        super().__init__(name=name)
        self._size = size

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> the same."""
        return _features(observation, self._size)


def _features(observation: tf.Tensor, size: int | None) -> tf.Tensor:
    return observation if size in (None, observation.shape[-1]) else observation[..., :size]


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


def merged_moments(mean, variance, count, batch_mean, batch_variance, batch_count):
    """Computes the moments of two merged samples from the moments of each.

    Chan et al. 1983, "Algorithms for computing the sample variance", in the form that does not
    cancel if the mean is large compared with the standard deviation:

        mean' = mean + delta m / (n + m)
        variance' = (n variance + m variance_m + delta**2 n m / (n + m)) / (n + m)

    with delta = mean_m - mean.

    Args:
      mean: [N] float32 of the n values seen so far.
      variance: [N] float32 of these, divided by n.
      count: int64 scalar n; may be 0.
      batch_mean: [N] float32 of m further values.
      batch_variance: [N] float32 of these, divided by m.
      batch_count: int64 scalar m, more than 0.

    Returns:
      As the first three arguments, of all n + m values.
    """
    total = count + batch_count
    share = tf.cast(batch_count / total, mean.dtype)
    delta = batch_mean - mean
    parts = [(1 - share) * variance, share * batch_variance, tf.square(delta) * share * (1 - share)]
    # Not a + b + c: TensorFlow's graph optimizer may add them in another order on each replica.
    return mean + share * delta, tf.reduce_sum(tf.stack(parts), axis=0), total


# It has variables, but none of them is trainable.
@snt.allow_empty_variables
class RunningNormalization(snt.Module):
    """An encoder of states: [B, N] float32 -> (x - mean) / standard deviation, clipped to +-10.

    The moments are those of all observations in the batches passed to `update`. They are variables
    that no optimizer trains: checkpoints hold them, and actors receive them with the weights.
    Before the first update, the encoder only clips.
    """

    def __init__(self, name: str = "encoder", size: int | None = None):
        """Makes an encoder without variables; the first call makes them.

        Args:
          name: name of the module.
          size: N; what follows is a mask of actions, and left out. None for all.
        """
        super().__init__(name=name)
        self._size = size

    @snt.once
    def _build(self, size: int) -> None:
        self.mean = tf.Variable(tf.zeros([size]), trainable=False, name="mean")
        self.variance = tf.Variable(tf.ones([size]), trainable=False, name="variance")
        self.count = tf.Variable(0, dtype=tf.int64, trainable=False, name="count")

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> the same, normalised."""
        observation = _features(observation, self._size)
        self._build(observation.shape[-1])
        normalised = (observation - self.mean) * tf.math.rsqrt(self.variance + _EPSILON)
        return tf.clip_by_value(normalised, -_MAX, _MAX)

    def update(self, observation: tf.Tensor, valid: tf.Tensor | None = None) -> None:
        """Adds a batch to the moments; all replicas call it.

        Args:
          observation: [..., N] float32 of a replica's batch.
          valid: [...] float32, 1 for the observations that count, at least one; None for all.
        """
        weights = tf.ones(tf.shape(observation)[:-1]) if valid is None else valid
        weights = tf.reshape(weights, [-1, 1])
        size = collectives.all_sum(tf.reduce_sum(weights))
        observation = tf.reshape(observation, [-1, observation.shape[-1]])
        observation = _features(observation, self._size)
        observation = tf.clip_by_value(observation, -_MAX_IN_MOMENTS, _MAX_IN_MOMENTS)

        def mean_of(x: tf.Tensor) -> tf.Tensor:
            return collectives.all_sum(tf.reduce_sum(weights * x, axis=0)) / size  # [N]

        mean = mean_of(observation)
        variance = mean_of(tf.square(observation - mean))  # Around the global mean.
        new = merged_moments(
            self.mean, self.variance, self.count, mean, variance, tf.cast(size, tf.int64)
        )
        for variable, value in zip((self.mean, self.variance, self.count), new, strict=True):
            variable.assign(value)


@snt.allow_empty_variables  # Hand-written features have none.
class FrameAndVectorEncoder(snt.Module):
    """Encodes `{"pixels": frames, "vector": [B, N]}`: features of the frames, then the vector."""

    def __init__(
        self,
        make_frames: Callable[[str], snt.Module],
        make_vector: Callable[[str], snt.Module],
        name: str,
    ):
        """Makes the encoders of both parts, each of which returns [B, ...] float32."""
        super().__init__(name=name)
        self._frames, self._vector = make_frames("frames"), make_vector("vector")

    def __call__(self, observation: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Nest of [B, ...] -> [B, F + N] float32."""
        features = features_of("agent.encoder", self._frames, observation["pixels"])
        return tf.concat([features, self._vector(observation["vector"])], axis=-1)


def update_statistics(
    networks: Iterable[snt.Module], observation: Any, valid: tf.Tensor | None = None
) -> None:
    """Adds a batch to the moments of the networks that normalise observations.

    Args:
      networks: built modules; those of other kinds are left unchanged.
      observation: nest of [B, ...] of a replica's batch.
      valid: see `RunningNormalization.update`.
    """
    vector = observation["vector"] if isinstance(observation, Mapping) else observation
    for network in networks:
        for module in (network, *network.submodules):
            if isinstance(module, RunningNormalization):
                module.update(vector, valid)


def stacked(frames: tf.Tensor) -> tf.Tensor:
    """Stacks frames along channels: [B, S, H, W, C] -> [B, H, W, S * C], the oldest first."""
    stack, height, width, channels = frames.shape[1:]
    last = tf.transpose(frames, [0, 2, 3, 1, 4])
    return tf.reshape(last, [-1, height, width, stack * channels])


def random_shift(frames: tf.Tensor, seed: tf.Tensor, max_shift: int) -> tf.Tensor:
    """Shifts every observation of a replica's batch by whole pixels, at random, and stacks it.

    DrQ (Kostrikov et al. 2020, arXiv:2004.13649): pad by `max_shift` and crop at random. All frames
    of a stack move together.

    Args:
      frames: [B, S, H, W, C] of any dtype, all but B known.
      seed: [2] int32, equal on all replicas.
      max_shift: pixels in each direction; all shifts are equally likely.

    Returns:
      [B, H, W, S * C], as from `stacked`.
    """
    return shift(
        frames, uniform_integers([tf.shape(frames)[0], 2], -max_shift, max_shift + 1, seed)
    )


def shift(frames: tf.Tensor, shifts: tf.Tensor) -> tf.Tensor:
    """Moves every observation by whole pixels and stacks it; the border is repeated.

    Args:
      frames: [B, S, H, W, C] of any dtype, all but B known.
      shifts: [B, 2] int32; pixel (y, x) of the result is pixel (y, x) + shift of `frames`.

    Returns:
      [B, H, W, S * C], as from `stacked`.
    """
    batch, (stack, height, width, _) = tf.shape(frames)[0], frames.shape[1:]
    # The time of a gather grows with the number of slices, not with their size. So rows move before
    # the frames are stacked, while a row is one slice, and columns afterwards, when a pixel of all
    # frames is one slice. Besides, with a gather between the cast and the transpose, Grappler
    # cannot swap these two: transposing single bytes is several times slower than numbers of two or
    # four bytes. A mesh does not support tf.newaxis.
    rows = tf.clip_by_value(tf.range(height) + shifts[:, :1], 0, height - 1)  # [B, H]
    first = tf.reshape(tf.range(batch * stack) * height, [batch, stack, 1])
    frames = tf.gather(tf.reshape(frames, [-1, *frames.shape[3:]]), first + tf.expand_dims(rows, 1))
    stacks = stacked(frames)
    columns = tf.clip_by_value(tf.range(width) + shifts[:, 1:], 0, width - 1)  # [B, W]
    first = tf.reshape(tf.range(batch * height) * width, [batch, height, 1])
    return tf.gather(tf.reshape(stacks, [-1, stacks.shape[-1]]), first + tf.expand_dims(columns, 1))
