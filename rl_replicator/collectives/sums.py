"""Sums over replicas, of all dtypes and with gradients: the basis of all collectives."""

import weakref
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.collectives import call_log

# The dtypes that every strategy can add up on any device. Other dtypes are converted to one of
# them.
_CARRIED = (tf.float32, tf.float64, tf.int64)
# Sums a vector of the given length.
_VectorSum = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
_CHANGING: MutableMapping[tf.distribute.Strategy, _VectorSum] = weakref.WeakKeyDictionary()


def sum_changing_with(strategy: tf.distribute.Strategy, function: _VectorSum) -> None:
    """Registers how to sum vectors whose length changes from step to step.

    Args:
      strategy: a strategy whose own all-reduce takes one shape only.
      function: called on each replica while a step is traced; maps a vector and its length, which
        is the same on all replicas, to the sum over replicas.
    """
    _CHANGING[strategy] = function


def total(xs: Sequence[tf.Tensor], call: str) -> list[tf.Tensor]:
    """Sums each tensor over the replicas, with one all-reduce for each of at most three dtypes.

    float16 and bfloat16 are summed in float32, and integers wrap around. The gradient of a sum is
    the sum of the gradients.

    Args:
      xs: numbers, or bools that are true on at most one replica; of the same shapes on all
        replicas.
      call: text of the calling collective, under which the gradient's all-reduce is recorded.

    Returns:
      The sums, with the shapes and dtypes of `xs`.
    """
    carried = [_load(x) for x in xs]
    for dtype in _CARRIED:
        # Ring all-reduce fails for empty tensors, which are their own sums.
        places = [
            i for i, y in enumerate(carried) if y.dtype == dtype and y.shape.num_elements() != 0
        ]
        sums = _sum([carried[i] for i in places], call) if places else []
        for i, y in zip(places, sums, strict=True):
            carried[i] = y
    return [_unload(y, x.dtype) for y, x in zip(carried, xs, strict=True)]


def stack(xs: Sequence[tf.Tensor], call: str) -> list[tf.Tensor]:
    """Stacks each tensor over the replicas, to shape [num_replicas, ...]. See `total`.

    Computed as a sum of tensors that are zero in the rows of other replicas. This takes one
    all-reduce for all tensors, where TensorFlow's gather takes two for each, and keeps all shapes
    static for XLA.
    """
    return total([_in_own_row(x) for x in xs], call)


def concatenate(slices: Sequence[tf.IndexedSlices], call: str) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Concatenates the rows of all replicas, which may have different numbers of rows.

    Args:
      slices: slices of this replica.
      call: see `total`.

    Returns:
      Values, [all rows, ...], and indices, [all rows], for each of `slices`.
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
    """Checks that dynamic shapes are equal on all replicas.

    Static shapes need no check here: they are compared with the recorded calls.

    Args:
      xs: tensors of this replica.
      call: text of the calling collective, for errors.

    Returns:
      The tensors, which depend on the check.

    Raises:
      ConfigError: if not even the rank of a tensor is static.
      InvalidArgumentError: when the step runs, on all replicas, if the shapes differ.
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
            "pad or cut the tensors to one shape",
        ],
        summarize=-1,
    )
    checked = list(xs)
    with tf.control_dependencies([check]):
        for i in places:
            checked[i] = tf.identity(xs[i])
    return checked


def num_replicas() -> int:
    """Returns the number of replicas that take the step."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def replica_id() -> tf.Tensor:
    """Returns the index of this replica, from 0, an int32 scalar."""
    return tf.convert_to_tensor(context().replica_id_in_sync_group, tf.int32)


def static_replica_id() -> int | None:
    """Returns the index of this replica; None if all replicas share one trace, as on TPUs."""
    value = tf.get_static_value(context().replica_id_in_sync_group)
    return None if value is None else int(value)


def context() -> tf.distribute.ReplicaContext:
    """Returns TensorFlow's replica context.

    Raises:
      ConfigError: outside of a replicated step.
    """
    found = tf.distribute.get_replica_context()
    if found is None:
        raise errors.ConfigError(
            "expected a collective inside a replicated step, found one outside; call collectives "
            "in step_fn only"
        )
    return found


def record(call: str) -> None:
    """Records a collective before it communicates, so that an error can name it.

    Args:
      call: see `CallLog.record`.

    Raises:
      ConfigError: in code that some replicas may skip.
    """
    current = call_log.current()
    if current is not None:
        index = static_replica_id() or 0
        if index:  # The default strategy, which has a single replica, does not list its devices.
            index %= len(tf.distribute.get_strategy().extended.worker_devices)
        current.record(index, call)


def _sum(xs: Sequence[tf.Tensor], call: str) -> list[tf.Tensor]:
    # With a custom gradient, because TensorFlow's own would not be recorded in the call log.
    @tf.custom_gradient
    def summed(*xs: tf.Tensor) -> Any:
        is_tpu = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
        ys = _sum_in_parts(xs) if is_tpu and xs[0].dtype == tf.int64 else _all_sum(xs)

        def gradient(*dys: tf.Tensor) -> list[tf.Tensor]:
            of = f"the gradient of {call}"
            record(of)
            return _sum(dys, of)

        return ys, gradient

    return list(summed(*xs))


def _all_sum(xs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    # A row of the input has no device yet. Its copy is placed on the replica's device. All sums
    # wait for all values: otherwise a variable that is assigned one sum may be new when it is read
    # for another. TensorFlow drops the order of that read and the assignment as implied by the
    # `IdentityN` of a custom gradient, and then splits the `IdentityN`.
    with tf.control_dependencies([tf.group(*xs)]):
        ys = [tf.identity(x) for x in xs]
    strategy = tf.distribute.get_strategy()
    changing = [
        i for i, y in enumerate(ys) if strategy in _CHANGING and not y.shape.is_fully_defined()
    ]
    fixed = [i for i in range(len(ys)) if i not in changing]
    for places, sum_ in ((fixed, _sum_of_fixed), (changing, _sum_of_changing)):
        if places:
            for i, y in zip(places, sum_([ys[i] for i in places]), strict=True):
                ys[i] = y
    return ys


def _sum_of_fixed(xs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    graph = tf.compat.v1.get_default_graph()
    seed = graph.seed
    ys = context().all_reduce(tf.distribute.ReduceOp.SUM, xs)
    # While this replica waited, the others were traced into the same graph, each with its own seed.
    graph.seed = seed
    return ys


def _sum_of_changing(xs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    shapes = [tf.shape(x) for x in xs]  # Equal on all replicas.
    sizes = [tf.reduce_prod(shape) for shape in shapes]
    flat = tf.concat([tf.reshape(x, [-1]) for x in xs], axis=0)
    summed = _CHANGING[tf.distribute.get_strategy()](flat, tf.add_n(sizes))
    return [
        tf.ensure_shape(tf.reshape(part, shape), x.shape)
        for part, shape, x in zip(tf.split(summed, sizes), shapes, xs, strict=True)
    ]


def _sum_in_parts(xs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Sums 64-bit integers exactly on TPUs, whose all-reduce supports 32 bits at most."""
    shifts = range(0, 64, 16)
    parts = [tf.bitwise.right_shift(x, tf.constant(s, tf.int64)) for x in xs for s in shifts]
    # Parts of 16 bits, so that sums over up to 2**15 replicas fit into 32 bits.
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
    # TensorFlow infers no static shape if the padding is not static.
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
