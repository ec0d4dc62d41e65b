"""Sums over the replicas, of any tensors and with gradients: what collectives are made of."""

from collections.abc import Sequence

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.collectives import call_log

# The types that every strategy can add up, on any device. Others travel as one of them.
_CARRIED = (tf.float32, tf.float64, tf.int64)


def total(xs: Sequence[tf.Tensor], call: str) -> list[tf.Tensor]:
    """The sum over replicas of each tensor, in one exchange for each of at most three types.

    Halves are added up in float32; integers of any width wrap around as they do in memory. The
    gradient of a sum is the sum of the gradients.

    Args:
      xs: numbers or bools (as 0 and 1, of which at most one replica may have a 1), in shapes that
        are the same on every replica.
      call: the collective that this is for, as it is recorded; to record its gradient, too.
    """
    carried = [_load(x) for x in xs]
    for dtype in _CARRIED:
        # An empty tensor is its own sum, and rings cannot carry it.
        places = [
            i for i, y in enumerate(carried) if y.dtype == dtype and y.shape.num_elements() != 0
        ]
        sums = _sum([carried[i] for i in places], call) if places else []
        for i, y in zip(places, sums, strict=True):
            carried[i] = y
    return [_unload(y, x.dtype) for y, x in zip(carried, xs, strict=True)]


def stack(xs: Sequence[tf.Tensor], call: str) -> list[tf.Tensor]:
    """Each tensor of all replicas, of shape [num_replicas] + its shape. See `total`.

    A sum of tensors that are zero in the others' rows: so it takes one exchange for all, where
    TensorFlow's gathering takes two for each, and XLA knows all shapes.
    """
    return total([_in_own_row(x) for x in xs], call)


def concatenate(slices: Sequence[tf.IndexedSlices], call: str) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """The rows of all replicas: how many, may differ.

    Returns:
      Values [all rows, ...] and indices [all rows] for each of `slices`.
    """
    lengths = tf.stack([tf.shape(rows.indices, tf.int64)[0] for rows in slices])
    (counts,) = stack([lengths], call)  # [N, slices]
    own = replica_id()
    before = tf.reduce_sum(tf.where((tf.range(num_replicas()) < own)[:, tf.newaxis], counts, 0), 0)
    after = tf.reduce_sum(counts, axis=0) - before - lengths
    padded = []
    for i, rows in enumerate(slices):
        padded.append(_pad_rows(rows.values, before[i], after[i]))
        padded.append(_pad_rows(rows.indices, before[i], after[i]))
    joined = total(padded, call)
    return list(zip(joined[::2], joined[1::2], strict=True))


def agree_on_shapes(xs: Sequence[tf.Tensor], call: str) -> list[tf.Tensor]:
    """The same tensors, with a check on all replicas that their shapes are everywhere the same.

    What is known while tracing costs nothing: it is compared with the rest of the trace.

    Raises:
      ConfigError: not even the rank is known.
      InvalidArgumentError: the shapes differ; when the step runs, on all replicas alike.
    """
    places = [i for i, x in enumerate(xs) if not x.shape.is_fully_defined()]
    if not places:
        return list(xs)
    for i in places:
        if xs[i].shape.rank is None:
            raise errors.ConfigError(
                f"expected tensors of known rank in {call}, got one of unknown shape; "
                "set it with tf.ensure_shape"
            )
    shapes = tf.concat([tf.shape(xs[i], tf.int64) for i in places], axis=0)
    (stacked,) = stack([shapes], call)  # [N, dimensions of all]
    check = tf.debugging.Assert(
        tf.reduce_all(tf.equal(stacked, stacked[:1])),
        [
            f"expected the same shapes on all replicas in {call}, got (a row for each replica)",
            stacked,
            "pad the tensors, or drop what is left over, to one shape",
        ],
        summarize=-1,
    )
    checked = list(xs)
    with tf.control_dependencies([] if check is None else [check]):
        for i in places:
            checked[i] = tf.identity(xs[i])
    return checked


def num_replicas() -> int:
    """How many replicas take part in the step."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def replica_id() -> tf.Tensor:
    """This replica's number, an int32 scalar."""
    return tf.convert_to_tensor(context().replica_id_in_sync_group, tf.int32)


def static_replica_id() -> int | None:
    """This replica's number; None where one trace serves all replicas, as on TPUs."""
    value = tf.get_static_value(context().replica_id_in_sync_group)
    return None if value is None else int(value)


def context() -> tf.distribute.ReplicaContext:
    """The replica's place in TensorFlow's strategy.

    Raises:
      ConfigError: replicas do not run here.
    """
    found = tf.distribute.get_replica_context()
    if found is None:
        raise errors.ConfigError(
            "expected to be inside a replicated step, but replicas do not run here; "
            "call collectives in step_fn only"
        )
    return found


def record(call: str) -> None:
    """Notes a collective before it communicates, so that a disagreement has a name.

    Raises:
      ConfigError: it is called where not all replicas may come by.
    """
    current = call_log.current()
    if current is not None:
        index = static_replica_id() or 0
        if index:  # The default strategy, of one replica, does not know its devices.
            index %= len(tf.distribute.get_strategy().extended.worker_devices)
        current.record(index, call)


def _sum(xs: Sequence[tf.Tensor], call: str) -> list[tf.Tensor]:
    # With a gradient of our own, because TensorFlow's would leave no trace.
    @tf.custom_gradient
    def summed(*xs):
        is_tpu = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
        ys = _sum_in_parts(xs) if is_tpu and xs[0].dtype == tf.int64 else _all_sum(xs)

        def gradient(*dys):
            of = f"the gradient of {call}"
            record(of)
            return _sum(dys, of)

        return ys, gradient

    return list(summed(*xs))


def _all_sum(xs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    # A row of the input has no device yet: its copy has the device of the replica.
    return context().all_reduce(tf.distribute.ReduceOp.SUM, [tf.identity(x) for x in xs])


def _sum_in_parts(xs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Sums of 64-bit integers, as exact as in memory, for TPUs, which add up 32 bits at most."""
    shifts = range(0, 64, 16)
    parts = [tf.bitwise.right_shift(x, tf.constant(s, tf.int64)) for x in xs for s in shifts]
    # 16 bits each: so the sums over up to 2**15 replicas fit.
    sums = _all_sum([tf.cast(tf.bitwise.bitwise_and(p, 0xFFFF), tf.int32) for p in parts])
    wide = [tf.cast(y, tf.int64) * (1 << s) for y, s in zip(sums, [*shifts] * len(xs), strict=True)]
    return [tf.add_n(wide[i : i + 4]) for i in range(0, len(wide), 4)]


def _in_own_row(x: tf.Tensor) -> tf.Tensor:
    rows = tf.equal(tf.range(num_replicas()), replica_id())
    mask = tf.reshape(rows, [-1] + [1] * x.shape.rank)
    return tf.where(mask, x[tf.newaxis], tf.zeros([], x.dtype))


def _pad_rows(x: tf.Tensor, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    rest = tf.zeros([x.shape.rank - 1, 2], tf.int64)
    padded = tf.pad(x, tf.concat([[[before, after]], rest], axis=0))
    padded.set_shape([None, *x.shape[1:]])
    return padded


def _load(x: tf.Tensor) -> tf.Tensor:
    if x.dtype in _CARRIED:
        return x
    if x.dtype.is_complex:
        return tf.stack([tf.math.real(x), tf.math.imag(x)], axis=-1)
    if x.dtype == tf.uint64:
        return tf.bitcast(x, tf.int64)
    return tf.cast(x, tf.float32 if x.dtype.is_floating else tf.int64)


def _unload(y: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype.is_complex:
        return tf.complex(y[..., 0], y[..., 1])
    return tf.bitcast(y, dtype) if dtype == tf.uint64 else tf.cast(y, dtype)
