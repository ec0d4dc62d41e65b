"""Batch norm over the batches of all replicas, and moving statistics that replicas average."""

from collections.abc import Iterable
from typing import Any

import sonnet as snt
import tensorflow as tf

from rl_replicator import collectives, errors
from rl_replicator.layers import statistics


class MovingAverage(snt.Metric):
    """`value <- decay value + (1 - decay) x`, from a given start and without bias correction.

    Keras does the same. `snt.ExponentialMovingAverage` starts at 0 and corrects the bias.
    """

    def __init__(self, decay: float, start: float, name: str | None = None):
        """Creates no variable yet.

        Args:
          decay: share of the old value that each update keeps, in [0, 1].
          start: initial value of every element.
          name: the name of the module.
        """
        super().__init__(name=name)
        self._decay = decay
        self._start = start

    @snt.once
    def initialize(self, value: tf.Tensor) -> None:
        """Creates the variable, in the shape and dtype of `value`."""
        self.average = tf.Variable(self._initial(value), trainable=False, name="average")

    def update(self, value: tf.Tensor) -> None:
        """Moves the average towards `value`, which has the shape that `initialize` got."""
        self.initialize(value)
        self.average.assign_sub((self.average - value) * (1 - self._decay))

    @property
    def value(self) -> tf.Tensor:
        """The current average."""
        return self.average.read_value()

    def reset(self) -> None:
        """Sets the average to its initial value."""
        self.average.assign(self._initial(self.average))

    def _initial(self, like: tf.Tensor | tf.Variable) -> tf.Tensor:
        return tf.fill(like.shape, tf.constant(self._start, like.dtype))


class CrossReplicaBatchNorm(snt.Module):
    """Batch norm over the batches of all replicas; exact even if their sizes differ.

    Ioffe & Szegedy 2015, Algorithm 1 (arXiv:1502.03167), with the biased variance. The statistics
    take one exchange of 2C + 1 numbers forward and one backward. They are equal on all replicas,
    and so are the moving statistics. A step that a wrapped optimizer skips does not update them.
    For float16 and bfloat16 inputs, all statistics and parameters are float32; for float64 inputs,
    only the moving statistics are, because Sonnet's averages support no other dtype.

    Arguments, attributes and calls are those of Sonnet's batch norms, as are the names and shapes
    of the variables. Called outside of a step, for example to build a model, it normalizes over its
    input batch.
    """

    def __init__(
        self,
        create_scale: bool,
        create_offset: bool,
        moving_mean: snt.Metric | None = None,
        moving_variance: snt.Metric | None = None,
        *,
        decay_rate: float = 0.999,
        eps: float = 1e-5,
        scale_init: snt.initializers.Initializer | None = None,
        offset_init: snt.initializers.Initializer | None = None,
        data_format: str = "channels_last",
        name: str | None = None,
    ):
        """Creates no variable yet.

        Args:
          create_scale: whether to have a trainable scale per channel.
          create_offset: whether to have a trainable offset per channel.
          moving_mean: averages the mean, for use outside of training. By default an
            `snt.ExponentialMovingAverage(decay_rate)`, which corrects its bias.
          moving_variance: averages the variance, with the same default.
          decay_rate: decay of the default moving statistics.
          eps: added to the variance before its square root.
          scale_init: initializer of the scale; ones by default.
          offset_init: initializer of the offset; zeros by default.
          data_format: "channels_last", "channels_first", or like "NHWC" and "NCHW".
          name: the name of the module.

        Raises:
          ConfigError: if a parameter that is not created has an initializer, or the data format is
            unknown.
        """
        super().__init__(name=name)
        for is_created, init, what in (
            (create_scale, scale_init, "scale"),
            (create_offset, offset_init, "offset"),
        ):
            if init is not None and not is_created:
                raise errors.ConfigError(
                    f"expected no {what}_init without create_{what}, got one; leave it out"
                )
        average = snt.ExponentialMovingAverage
        self.moving_mean = moving_mean or average(decay_rate, name="moving_mean")
        self.moving_variance = moving_variance or average(decay_rate, name="moving_variance")
        self._create_scale, self._create_offset = create_scale, create_offset
        self._scale_init = scale_init or snt.initializers.Ones()
        self._offset_init = offset_init or snt.initializers.Zeros()
        self._eps = eps
        self._channels_first = _channels_first(data_format)

    @tf.autograph.experimental.do_not_convert  # Its flags are not tensors; it is traced faster.
    def __call__(
        self,
        inputs: tf.Tensor,
        is_training: bool,
        test_local_stats: bool = False,
        scale: tf.Tensor | None = None,
        offset: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Normalizes, scales and shifts.

        Args:
          inputs: [B, ..., C], or [B, C, ...] if channels come first; B may differ between replicas
            and be 0. All replicas must make the call, outside of `tf.cond` and loops.
          is_training: whether to use the statistics of the batch and to update the moving ones.
          test_local_stats: whether to use the statistics of the batch (over all replicas) although
            `is_training` is False.
          scale: only if `create_scale` is False: broadcasts against `inputs`.
          offset: only if `create_offset` is False: broadcasts against `inputs`.

        Returns:
          A tensor of the shape and dtype of `inputs`.

        Raises:
          ConfigError: if `inputs` are not floating, or a scale or an offset is passed although the
            layer has created one.
        """
        if (scale is not None and self._create_scale) or (
            offset is not None and self._create_offset
        ):
            raise errors.ConfigError(
                "expected no scale or offset besides the created ones, got one; create none"
            )
        inputs = tf.convert_to_tensor(inputs)
        if not inputs.dtype.is_floating:  # The result has that dtype and would be truncated.
            raise errors.ConfigError(
                f"expected floating inputs of batch norm, got {inputs.dtype.name}; use tf.cast"
            )
        self._initialize(inputs)
        dtype = inputs.dtype
        inputs = tf.cast(inputs, self.scale.dtype)
        if is_training or test_local_stats:
            mean, variance = self._moments(inputs)
        else:
            moving = self.moving_mean.value, self.moving_variance.value
            mean, variance = (tf.cast(one, inputs.dtype) for one in moving)
        if is_training:
            self.moving_mean.update(tf.cast(mean, tf.float32))
            self.moving_variance.update(tf.cast(variance, tf.float32))
        scale = self.scale if scale is None else tf.cast(scale, inputs.dtype)
        offset = self.offset if offset is None else tf.cast(offset, inputs.dtype)
        outputs = tf.nn.batch_normalization(inputs, mean, variance, offset, scale, self._eps)
        return tf.cast(outputs, dtype)

    @snt.once
    def _initialize(self, inputs: tf.Tensor) -> None:
        rank = inputs.shape.rank
        channel = 1 if self._channels_first else rank - 1
        size = inputs.shape[channel]
        dtype = tf.float64 if inputs.dtype == tf.float64 else tf.float32
        self._axis = tuple(i for i in range(rank) if i != channel)
        self._shape = [size if i == channel else 1 for i in range(rank)]
        parameters = self._shape[1:] if self._channels_first else [size]
        for moving in (self.moving_mean, self.moving_variance):
            statistics.declare(snt.allow_empty_variables(moving).variables)
            moving.initialize(tf.zeros(self._shape))
            statistics.declare(moving.variables)
        self.scale = tf.Variable(
            self._scale_init(parameters, dtype), name="scale", trainable=self._create_scale
        )
        self.offset = tf.Variable(
            self._offset_init(parameters, dtype), name="offset", trainable=self._create_offset
        )

    def _moments(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if tf.distribute.in_cross_replica_context() or collectives.num_replicas() == 1:
            # The moments are not packed as for an exchange: a mesh could not split them by channel.
            count, mean, deviations = _moments(inputs, self._axis)
            variance = deviations / tf.maximum(count, 1)
        else:
            mean, variance = _global_moments(inputs, self._axis, self._shape)
        return tf.reshape(mean, self._shape), tf.reshape(variance, self._shape)


def _global_moments(
    x: tf.Tensor, axis: tuple[int, ...], shape: list[int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes mean and biased variance over the batches of all replicas, [C] each.

    The gradient is written by hand, `(g_m + 2 g_v (x - m)) / n`, because that of the operations of
    `moments` and `combine` takes several times as many.

    Args:
      x: see `moments`.
      axis: see `moments`.
      shape: [..., C, ...], shape in which the mean broadcasts against `x`.
    """
    found: list[tf.Tensor] = []

    @tf.custom_gradient
    def compute(local: tf.Tensor) -> Any:
        gathered = collectives.all_gather(moments(local, axis))  # [N, 1 + 2C]

        def gradient(*of_results: tf.Tensor) -> tf.Tensor:
            total = collectives.all_sum(tf.stack(of_results))  # [2, C]
            total /= tf.maximum(tf.reduce_sum(gathered[:, 0]), 1)
            of_mean, of_variance = (tf.reshape(one, shape) for one in tf.unstack(total))
            slope = 2 * of_variance  # `a x + b` takes two passes over a large x.
            # The mean as a result, and not as computed here, so that this has a gradient, too.
            return slope * x + (of_mean - slope * tf.reshape(found[0], shape))

        return combine(gathered), gradient

    found.extend(compute(x))
    return found[0], found[1]


def moments(x: tf.Tensor, axis: tuple[int, ...]) -> tf.Tensor:
    """Computes the size of a batch and, per channel, its mean and sum of squared deviations.

    Args:
      x: float tensor of any rank; the batch may be empty.
      axis: all dimensions except the channels.

    Returns:
      [1 + 2C]: number of values per channel, means, sums; the input of `combine`.
    """
    count, mean, deviations = _moments(x, axis)
    return tf.concat([[count], mean, deviations], axis=0)


def _moments(x: tf.Tensor, axis: tuple[int, ...]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """See `moments`: [], [C] and [C]."""
    count = tf.cast(tf.reduce_prod([tf.shape(x, tf.int64)[i] for i in axis]), x.dtype)
    mean = tf.reduce_sum(x, axis, keepdims=True) / tf.maximum(count, 1)
    deviations = tf.reduce_sum(tf.math.squared_difference(x, mean), axis)
    return count, tf.reshape(mean, [-1]), deviations


def combine(gathered: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the mean and biased variance of several batches together.

    Chan, Golub & LeVeque 1983, "Algorithms for computing the sample variance", equation 2.1: unlike
    the difference of two large sums, it does not cancel.

    Args:
      gathered: [N, 1 + 2C], a row of `moments` for each batch.

    Returns:
      [C] mean, [C] variance; zeros if all batches are empty.
    """
    counts = gathered[:, :1]  # [N, 1]
    means, deviations = tf.split(gathered[:, 1:], 2, axis=1)  # [N, C] each
    total = tf.maximum(tf.reduce_sum(counts), 1)
    mean = tf.reduce_sum(counts * means, axis=0) / total
    between = tf.reduce_sum(counts * tf.square(means - mean), axis=0)
    return mean, (tf.reduce_sum(deviations, axis=0) + between) / total


def average_declared(variables: Iterable[tf.Variable]) -> None:
    """Averages the moving statistics that a step has updated over the replicas.

    Called at the end of the trace of every replica. Such variables are not trainable, floating, and
    have `tf.VariableAggregation.MEAN`, as those of `tf.keras.layers.BatchNormalization`, and those
    of Sonnet's moving averages in a replicator's scope. All share one exchange; a variable that the
    step only reads is left unchanged.

    Args:
      variables: the replicator's variables as they were created, each with the copies of all
        replicas; in the same order on all replicas.
    """
    if collectives.num_replicas() == 1:
        return
    chosen = statistics.written(v for v in variables if statistics.averaged(v))
    if not chosen:
        return
    means = collectives.all_mean([variable.read_value() for variable in chosen])
    for variable, mean in zip(chosen, means, strict=True):
        variable.assign(mean)


def _channels_first(data_format: str) -> bool:
    if data_format == "channels_first" or data_format.startswith("NC"):
        return True
    if data_format == "channels_last" or (data_format[:1] == "N" and data_format[-1:] == "C"):
        return False
    raise errors.ConfigError(
        f"expected a data_format such as channels_last, channels_first, NHWC or NCHW, got "
        f"{data_format!r}; use one of them"
    )
