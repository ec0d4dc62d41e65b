"""How replicas talk to one another inside a step.

All replicas must call the same collectives in the same order, with the same nests and shapes, and
never inside `tf.cond`, `tf.while_loop` or a nested `tf.function`: what can be seen of this while
the step is built is refused then, and shapes that are not known before are compared when it runs.
On a single replica each is the identity (`all_gather` adds its axis), so a step function does not
care where it runs.

Values are nests of tensors; None stays None. The tensors may have any type of numbers, or bools.
Gradients flow through all of them as mathematics has it: a replica receives the sum, over
replicas, of the gradients of what its value went into.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.collectives import sums

OPS = ("sum", "mean", "min", "max")

# Nothing here depends on tensors, and it is traced faster as it stands.
_as_written = tf.autograph.experimental.do_not_convert


def num_replicas() -> int:
    """How many replicas take part in the step."""
    return sums.num_replicas()


def replica_id() -> tf.Tensor:
    """This replica's number, an int32 scalar."""
    return sums.replica_id()


def replica_seed(seed: Any) -> tf.Tensor:
    """Derives this replica's seed from a common one, for `tf.random.stateless_*`.

    Other random operations need no such seed: without a seed of their own they draw other numbers
    on every replica, also after `tf.random.set_seed`. (Not on TPUs, where replicas share a trace.)

    Args:
      seed: [2] int32 or int64, the same on all replicas; a different one in every step.

    Returns:
      [2], of the dtype of `seed`; different on every replica, the same on every backend.
    """
    return tf.random.experimental.stateless_fold_in(seed, replica_id())


@_as_written
def all_reduce(x: Any, op: str = "sum") -> Any:
    """Reduces each tensor elementwise over the replicas; every replica gets the result.

    Args:
      x: nest of tensors, `tf.IndexedSlices` or None. For "sum" and "mean" slices may have different
        numbers of rows on different replicas; the result has the rows of all. There is no sum of
        bools, and neither "min" nor "max" of complex numbers or slices.
      op: "sum", "mean", "min" or "max"; of bools, "min" is "and", "max" is "or".

    Returns:
      The nest, with the dtypes of `x`; but the mean of integers and bools is float32. Halves are
      added up in float32. Replicas with the same minimum share its gradient equally.

    Raises:
      ConfigError: unknown op, a tensor that cannot be reduced, or a call where not all replicas may
        come by.
      InvalidArgumentError: when the step runs, if shapes that were unknown before differ.
    """
    if op not in OPS:
        raise errors.ConfigError(f"expected an op out of {', '.join(OPS)}, got {op!r}; use one")
    call, flat = _begin(f"all_{op}", x, lambda y: _check_reducible(y, op))
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
    """The sum over replicas. See `all_reduce`."""
    return all_reduce(x, "sum")


def all_mean(x: Any) -> Any:
    """The mean over replicas. See `all_reduce`."""
    return all_reduce(x, "mean")


def all_min(x: Any) -> Any:
    """The minimum over replicas. See `all_reduce`."""
    return all_reduce(x, "min")


def all_max(x: Any) -> Any:
    """The maximum over replicas. See `all_reduce`."""
    return all_reduce(x, "max")


@_as_written
def all_gather(x: Any) -> Any:
    """Stacks each tensor over the replicas.

    Args:
      x: nest of dense tensors, whose shapes are the same on every replica.

    Returns:
      The nest with tensors of shape [num_replicas] + their shape, in the order of the replicas.

    Raises:
      ConfigError: something else than dense tensors of numbers or bools, or a call where not all
        replicas may come by.
      InvalidArgumentError: when the step runs, if shapes that were unknown before differ.
    """
    call, flat = _begin("all_gather", x, _check_dense)
    places = [i for i, y in enumerate(flat) if y is not None]
    for i, y in zip(places, _stacked([flat[i] for i in places], call), strict=True):
        flat[i] = y
    return tf.nest.pack_sequence_as(x, flat)


@_as_written
def broadcast(x: Any, source_replica: int = 0) -> Any:
    """Gives every replica the value of one.

    Args:
      x: nest of dense tensors, of the same shapes on every replica; evaluated on all of them.
      source_replica: whose value counts.

    Raises:
      ConfigError: no such replica, or as in `all_gather`.
      InvalidArgumentError: as in `all_gather`.
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
    """Spreads a list over the replicas, applies `function`, and gathers the results on all.

    Replica i does items i, i + N, i + 2N, ...; the results must not differ in nest or shape.

    Args:
      function: from one item to a nest of dense tensors; calls no collectives.
      xs: items (the same list on every replica).

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
    """Spreads a list over the replicas, applies `function`, and reduces over all items.

    Args:
      function: from one item to a nest of dense tensors; nests and shapes must not differ.
      xs: items (the same list on every replica), at least one.
      op: "sum", "mean", "min" or "max".

    Returns:
      The reduction of `function(x)` over all x, on every replica. The mean of integers and bools is
      float32.

    Raises:
      ConfigError: empty list, unknown op, or a tensor that cannot be reduced.
    """
    if op not in OPS:
        raise errors.ConfigError(f"expected an op out of {', '.join(OPS)}, got {op!r}; use one")
    if not xs:
        raise errors.ConfigError("expected at least one item to reduce, got none; pass a list")

    def reduce(*ys):
        if ys[0] is None:
            return None
        _check_reducible(ys[0], op)
        stacked = tf.stack(ys)
        if op in ("min", "max"):
            return _extreme(stacked, op)
        if op == "sum":
            return tf.reduce_sum(stacked, axis=0)
        exact, result = _types_of_mean(stacked.dtype)
        return tf.cast(tf.reduce_mean(tf.cast(stacked, exact), axis=0), result)

    return tf.nest.map_structure(reduce, *map_gather(function, xs))


def _begin(
    kind: str, x: Any, check: Callable[[Any], None]
) -> tuple[str, list[tf.Tensor | tf.IndexedSlices | None]]:
    """Converts and checks what a collective is given, and records it.

    Returns:
      The call as text, and the flat tensors.
    """
    sums.context()
    flat = [_converted(y) for y in tf.nest.flatten(x)]
    described = tf.nest.pack_sequence_as(x, [_describe(y) for y in flat])
    call = f"{kind} of {described}".replace("'", "")
    sums.record(call)
    for y in flat:
        if y is not None:
            check(y)
    return call, flat


def _converted(y: Any) -> tf.Tensor | tf.IndexedSlices | None:
    if y is None or isinstance(y, tf.IndexedSlices):
        return y
    if isinstance(y, (tf.RaggedTensor, tf.SparseTensor)):
        raise errors.ConfigError(
            f"expected dense tensors in a collective, got a {type(y).__name__}; "
            "convert it with to_tensor() or tf.sparse.to_dense"
        )
    y = tf.convert_to_tensor(y)
    if not (y.dtype.is_floating or y.dtype.is_integer or y.dtype.is_complex or y.dtype.is_bool):
        raise errors.ConfigError(
            f"expected numbers or bools in a collective, got {y.dtype.name}; leave it out"
        )
    return y


def _describe(y: tf.Tensor | tf.IndexedSlices | None) -> str:
    if y is None:
        return "None"
    if isinstance(y, tf.IndexedSlices):  # Its rows may differ in number.
        return f"slices of {y.values.dtype.name}{y.values.shape[1:]}"
    return f"{y.dtype.name}{y.shape}"


def _check_dense(y: tf.Tensor | tf.IndexedSlices) -> None:
    if isinstance(y, tf.IndexedSlices):
        raise errors.ConfigError(
            "expected dense tensors, got tf.IndexedSlices, whose numbers of rows may differ; "
            "reduce them with all_sum or all_mean, or convert them with tf.convert_to_tensor"
        )


def _check_reducible(y: tf.Tensor | tf.IndexedSlices, op: str) -> None:
    if op == "sum" and y.dtype == tf.bool:
        raise errors.ConfigError(
            "expected numbers in a sum, got bools; tf.cast them, or take all_max for `or`"
        )
    if op in ("min", "max"):
        _check_dense(y)
        if y.dtype.is_complex:
            raise errors.ConfigError(
                f"expected numbers that have an order in all_{op}, got {y.dtype.name}; "
                "take tf.abs first"
            )


def _sums(xs: Sequence[tf.Tensor], call: str) -> list[tf.Tensor]:
    if num_replicas() == 1:
        return list(xs)
    return sums.total(sums.agree_on_shapes(xs, call), call)


def _means(xs: Sequence[tf.Tensor], call: str) -> list[tf.Tensor]:
    types = [_types_of_mean(x.dtype) for x in xs]
    totals = _sums([tf.cast(x, exact) for x, (exact, _) in zip(xs, types, strict=True)], call)
    count = num_replicas()
    return [
        tf.cast(y if count == 1 else y / count, result)
        for y, (_, result) in zip(totals, types, strict=True)
    ]


def _types_of_mean(dtype: tf.DType) -> tuple[tf.DType, tf.DType]:
    """In which type to compute a mean, and which type it has."""
    if dtype.is_integer or dtype.is_bool:
        return tf.float64, tf.float32
    # In float32, a sum of halves can neither overflow nor round before it is divided.
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
    if not places or count == 1:
        return flat
    joined = sums.concatenate([flat[i] for i in places], call)
    for i, (values, indices) in zip(places, joined, strict=True):
        if op == "mean":
            exact, result = _types_of_mean(values.dtype)
            values = tf.cast(tf.cast(values, exact) / count, result)
        flat[i] = tf.IndexedSlices(values, indices, flat[i].dense_shape)
    return flat


def _apply_to_own(function: Callable[[Any], Any], row: Sequence[Any]) -> Any:
    """`function` of this replica's item; where the row is too short, of its first item."""
    index = sums.static_replica_id()
    if index is None:  # One trace for all replicas: each chooses when it runs.
        return tf.switch_case(replica_id(), [lambda x=x: function(x) for x in row], default=None)
    return function(row[index] if index < len(row) else row[0])


def _item(gathered: Any, k: int) -> Any:
    return tf.nest.map_structure(lambda y: None if y is None else y[k], gathered)
