"""The collectives: communication between replicas inside a step.

All replicas must call the same collectives in the same order, with the same nests and shapes, and
never inside `tf.cond`, `tf.while_loop` or a nested `tf.function`. Violations raise an error while
the step is traced; dynamic shapes are compared when it runs. On a single replica every collective
is the identity (`all_gather` adds its axis), so a step function need not know where it runs.

Values are nests of tensors, of any numeric dtype or bool; None stays None. All collectives are
differentiable: a replica receives the sum, over all replicas, of the gradients with respect to its
value.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.collectives import sums
from rl_replicator.collectives.sums import num_replicas, replica_id
from rl_replicator.graphs import leaves

OPS = ("sum", "mean", "min", "max")


def replica_seed(seed: Any) -> tf.Tensor:
    """Derives this replica's seed from a common one, for `tf.random.stateless_*`.

    Stateful random ops need no such seed: without a seed of their own, they draw different numbers
    on each replica, even after `tf.random.set_seed` (except on TPUs, where replicas share a trace,
    and in a `tf.function` that several replicas of a process share).

    Args:
      seed: [2] int32 or int64, equal on all replicas and different in every step.

    Returns:
      [2], of the dtype of `seed`; different on each replica, and equal on all backends.
    """
    return tf.random.experimental.stateless_fold_in(seed, replica_id())


@tf.autograph.experimental.do_not_convert  # Makes tracing faster.
def all_reduce(x: Any, op: str = "sum") -> Any:
    """Reduces each tensor elementwise over the replicas; every replica gets the result.

    Args:
      x: nest of tensors, `tf.IndexedSlices` or None. Slices may have different numbers of rows on
        different replicas, and the result has the rows of all replicas; they support only "sum" and
        "mean". Complex numbers do not support "min" and "max", and bools do not support "sum".
      op: "sum", "mean", "min" or "max". For bools, "min" is a logical and, "max" a logical or.

    Returns:
      The nest, with the shapes and dtypes of `x`; the mean of integers and bools is float32.
      float16 and bfloat16 are summed in float32. Replicas whose values are equal to the minimum or
      maximum share its gradient equally.

    Raises:
      ConfigError: if the op is unknown, a tensor cannot be reduced, or some replicas may skip the
        call.
      InvalidArgumentError: when the step runs, if dynamic shapes differ between replicas.
    """
    check_op(op)
    call, flat = _begin(f"all_{op}", x, lambda y: _check_slices(y, op))
    places = [i for i, y in enumerate(flat) if isinstance(y, tf.Tensor)]
    dense = [flat[i] for i in places]
    if op in ("min", "max"):
        dense = [_extreme(y, op) for y in _stacked(dense, call)]
    elif op == "mean":
        dense = _means(dense, call)
    else:
        dense = _sums(dense, call)
    for i, y in zip(places, dense, strict=True):
        flat[i] = y
    return tf.nest.pack_sequence_as(x, _with_sums_of_slices(flat, op, call))


def all_sum(x: Any) -> Any:
    """Returns the sum over replicas. See `all_reduce`."""
    return all_reduce(x, "sum")


def all_mean(x: Any) -> Any:
    """Returns the mean over replicas. See `all_reduce`."""
    return all_reduce(x, "mean")


def all_min(x: Any) -> Any:
    """Returns the minimum over replicas. See `all_reduce`."""
    return all_reduce(x, "min")


def all_max(x: Any) -> Any:
    """Returns the maximum over replicas. See `all_reduce`."""
    return all_reduce(x, "max")


@tf.autograph.experimental.do_not_convert
def all_gather(x: Any) -> Any:
    """Stacks each tensor over the replicas.

    Args:
      x: nest of dense tensors or None, of the same shapes on all replicas.

    Returns:
      The nest, with tensors of shape [num_replicas, ...] in the order of the replicas.

    Raises:
      ConfigError: if the nest holds anything but dense tensors of numbers or bools, or some
        replicas may skip the call.
      InvalidArgumentError: when the step runs, if dynamic shapes differ between replicas.
    """
    call, flat = _begin("all_gather", x, _check_dense)
    places = [i for i, y in enumerate(flat) if y is not None]
    for i, y in zip(places, _stacked([flat[i] for i in places], call), strict=True):
        flat[i] = y
    return tf.nest.pack_sequence_as(x, flat)


@tf.autograph.experimental.do_not_convert
def broadcast(x: Any, source_replica: int = 0) -> Any:
    """Sends the value of one replica to all replicas.

    Args:
      x: nest of dense tensors or None, of the same shapes on all replicas. All replicas evaluate
        it.
      source_replica: index of the replica whose value is sent.

    Returns:
      The nest, with the values of the source replica.

    Raises:
      ConfigError: if there is no such replica; see also `all_gather`.
      InvalidArgumentError: see `all_gather`.
    """
    if not 0 <= source_replica < num_replicas():
        raise errors.ConfigError(
            f"expected source_replica in [0, {num_replicas()}), got {source_replica}; "
            "name a replica of this step"
        )
    call, flat = _begin(f"broadcast from replica {source_replica}", x, _check_dense)
    if num_replicas() > 1:
        is_source = tf.equal(replica_id(), source_replica)
        places = [i for i, y in enumerate(flat) if y is not None]
        known = sums.agree_on_shapes([flat[i] for i in places], call)
        masked = [tf.where(is_source, y, tf.zeros([], y.dtype)) for y in known]
        for i, y in zip(places, sums.total(masked, call), strict=True):
            flat[i] = y
    return tf.nest.pack_sequence_as(x, flat)


def map_gather(function: Callable[[Any], Any], xs: Sequence[Any]) -> list[Any]:
    """Applies a function to a list whose items are divided among the replicas.

    Replica i of N computes items i, i + N, i + 2N, ...

    Args:
      function: maps an item to a nest of dense tensors, of the same shapes for all items; must not
        call collectives.
      xs: items, the same list on all replicas.

    Returns:
      `[function(x) for x in xs]`, on every replica.
    """
    size = num_replicas()
    results: list[Any] = []
    for start in range(0, len(xs), size):
        row = xs[start : start + size]
        gathered = all_gather(_apply_to_own(function, row))
        results.extend(_item(gathered, k) for k in range(len(row)))
    return results


def map_reduce(function: Callable[[Any], Any], xs: Sequence[Any], op: str = "sum") -> Any:
    """Reduces the results of a function over a list whose items are divided among the replicas.

    Args:
      function: see `map_gather`.
      xs: items, the same list on all replicas; at least one.
      op: "sum", "mean", "min" or "max".

    Returns:
      The reduction of `function(x)` over all x, on every replica. The mean of integers and bools is
      float32.

    Raises:
      ConfigError: if the op is unknown, or a tensor cannot be reduced.
    """
    check_op(op)

    def reduce(*ys: Any) -> Any:
        if ys[0] is None:
            return None
        check_reducible(ys[0].dtype, op)
        stacked = tf.stack(ys)
        if op in ("min", "max"):
            return _extreme(stacked, op)
        if op == "sum":
            return tf.reduce_sum(stacked, axis=0)
        exact, result = types_of_mean(stacked.dtype)
        return tf.cast(tf.reduce_mean(tf.cast(stacked, exact), axis=0), result)

    return tf.nest.map_structure(reduce, *map_gather(function, xs))


def _begin(
    kind: str, x: Any, check: Callable[[Any], None]
) -> tuple[str, list[tf.Tensor | tf.IndexedSlices | None]]:
    """Records a collective, converts its nest to tensors and checks them.

    Args:
      kind: name of the collective.
      x: nest that was passed to it.
      check: raises `ConfigError` for a tensor that the collective does not support.

    Returns:
      The call as text, and the flat tensors.
    """
    sums.context()
    flat = [_converted(y, path) for path, y in leaves.with_paths(x)]
    described = tf.nest.pack_sequence_as(x, [_describe(y) for y in flat])
    call = f"{kind} of {described}".replace("'", "")
    sums.record(call)
    for y in flat:
        if y is not None:
            check(y)
    return call, flat


def _converted(y: Any, path: Sequence[Any]) -> tf.Tensor | tf.IndexedSlices | None:
    if y is None or isinstance(y, tf.IndexedSlices):
        return y
    y = leaves.as_tensor(y, path, "in a collective")
    if not (y.dtype.is_floating or y.dtype.is_integer or y.dtype.is_complex or y.dtype.is_bool):
        raise errors.ConfigError(
            f"expected numbers or bools in a collective, got {y.dtype.name}; remove it"
        )
    return y


def _describe(y: tf.Tensor | tf.IndexedSlices | None) -> str:
    if y is None:
        return "None"
    if isinstance(y, tf.IndexedSlices):  # Replicas may have different numbers of rows.
        return f"slices of {y.values.dtype.name}{y.values.shape[1:]}"
    return f"{y.dtype.name}{y.shape}"


def _check_dense(y: tf.Tensor | tf.IndexedSlices) -> None:
    if isinstance(y, tf.IndexedSlices):
        raise errors.ConfigError(
            "expected dense tensors, got tf.IndexedSlices, whose numbers of rows may differ "
            "between replicas; reduce them with all_sum or all_mean, or convert them with "
            "tf.convert_to_tensor"
        )


def _check_slices(y: tf.Tensor | tf.IndexedSlices, op: str) -> None:
    if op in ("min", "max"):
        _check_dense(y)
    check_reducible(y.dtype, op)


def check_op(op: str) -> None:
    """Raises `ConfigError` unless `op` is a reduction."""
    if op not in OPS:
        raise errors.ConfigError(f"expected one of {', '.join(OPS)} as op, got {op!r}; use one")


def check_reducible(dtype: tf.DType, op: str, place: str = "") -> None:
    """Raises `ConfigError` for a dtype that cannot be reduced.

    Args:
      dtype: dtype of a tensor.
      op: one of `OPS`.
      place: `leaves.place` of the tensor, for the error.
    """
    if dtype == tf.string:
        raise errors.ConfigError(
            f"expected numbers or bools to reduce, got strings{place}; gather them"
        )
    if op == "sum" and dtype == tf.bool:
        raise errors.ConfigError(
            f'expected numbers in a sum, got bools{place}; tf.cast them, or use "max" for a '
            "logical or"
        )
    if op in ("min", "max") and dtype.is_complex:
        raise errors.ConfigError(
            f"expected real numbers in a {op}, got {dtype.name}{place}; take tf.abs first"
        )


def _sums(xs: Sequence[tf.Tensor], call: str) -> list[tf.Tensor]:
    if num_replicas() == 1:
        return list(xs)
    return sums.total(sums.agree_on_shapes(xs, call), call)


def _means(xs: Sequence[tf.Tensor], call: str) -> list[tf.Tensor]:
    types = [types_of_mean(x.dtype) for x in xs]
    totals = _sums([tf.cast(x, exact) for x, (exact, _) in zip(xs, types, strict=True)], call)
    count = num_replicas()
    return [
        tf.cast(y if count == 1 else y / count, result)
        for y, (_, result) in zip(totals, types, strict=True)
    ]


def types_of_mean(dtype: tf.DType) -> tuple[tf.DType, tf.DType]:
    """Returns the dtype in which to compute a mean, and the dtype of the result."""
    if dtype.is_integer or dtype.is_bool:
        return tf.float64, tf.float32
    # In float16 and bfloat16, a sum could overflow or round before it is divided.
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype, dtype


def _stacked(xs: Sequence[tf.Tensor], call: str) -> list[tf.Tensor]:
    if num_replicas() == 1:
        return [tf.expand_dims(y, 0) for y in xs]
    return sums.stack(sums.agree_on_shapes(xs, call), call)


def _extreme(stacked: tf.Tensor, op: str) -> tf.Tensor:
    if stacked.dtype == tf.bool:
        return (tf.reduce_all if op == "min" else tf.reduce_any)(stacked, axis=0)
    return (tf.reduce_min if op == "min" else tf.reduce_max)(stacked, axis=0)


def _with_sums_of_slices(flat: list[Any], op: str, call: str) -> list[Any]:
    places = [i for i, y in enumerate(flat) if isinstance(y, tf.IndexedSlices)]
    count = num_replicas()
    slices = [flat[i] for i in places]
    joined = [(y.values, y.indices) for y in slices]
    if places and count > 1:
        joined = sums.concatenate(slices, call)
    for i, (values, indices) in zip(places, joined, strict=True):
        if op == "mean":
            exact, result = types_of_mean(values.dtype)
            values = tf.cast(tf.cast(values, exact) / count, result)
        flat[i] = tf.IndexedSlices(values, indices, flat[i].dense_shape)
    return flat


def _apply_to_own(function: Callable[[Any], Any], row: Sequence[Any]) -> Any:
    """Applies a function to this replica's item, or to the first one if the row is too short."""
    index = sums.static_replica_id()
    if index is None:  # All replicas share one trace, so each chooses its item when it runs.
        return tf.switch_case(replica_id(), [lambda x=x: function(x) for x in row], default=None)
    return function(row[index] if index < len(row) else row[0])


def _item(gathered: Any, k: int) -> Any:
    return tf.nest.map_structure(lambda y: None if y is None else y[k], gathered)
