"""How replicas talk to one another inside a step.

All replicas must call the same collectives in the same order, with the same nests and shapes, and
never inside `tf.cond`, `tf.while_loop` or a nested `tf.function`. On a single replica each is the
identity (`all_gather` adds its axis), so a step function does not care where it runs. Values are
nests; None stays None. Gradients flow through all of them as mathematics has it: a replica
receives the sum, over replicas, of the gradients of what its value went into.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors

OPS = ("sum", "mean", "min", "max")


def num_replicas() -> int:
    """How many replicas take part in the step."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def replica_id() -> tf.Tensor:
    """This replica's number, an int32 scalar."""
    return tf.convert_to_tensor(_context().replica_id_in_sync_group, tf.int32)


def all_reduce(x: Any, op: str = "sum") -> Any:
    """Reduces each tensor elementwise over the replicas; every replica gets the result.

    Args:
      x: nest of tensors, `tf.IndexedSlices` ("sum" and "mean" only) or None.
      op: "sum", "mean", "min" or "max".

    Raises:
      ConfigError: unknown op.
    """
    if op not in OPS:
        raise errors.ConfigError(f"expected an op out of {', '.join(OPS)}, got {op!r}; use one")
    context = _context()
    if num_replicas() == 1:
        return tf.nest.map_structure(_identity, x)
    if op in ("min", "max"):
        reduce = tf.reduce_min if op == "min" else tf.reduce_max
        return _map(lambda y: reduce(y, axis=0), all_gather(x))
    flat = tf.nest.flatten(x)
    mode = tf.distribute.ReduceOp.SUM if op == "sum" else tf.distribute.ReduceOp.MEAN
    # Each dtype in a call of its own, and each int32, which TensorFlow keeps on the host, too.
    groups: dict[Any, list[int]] = {}
    for i, y in enumerate(flat):
        if y is not None:
            flat[i] = _identity(y)
            dtype = flat[i].dtype.name  # The name, because a DType equals its number too.
            groups.setdefault((dtype, i) if dtype == "int32" else dtype, []).append(i)
    for places in groups.values():
        reduced = context.all_reduce(mode, [flat[i] for i in places])
        for i, y in zip(places, reduced, strict=True):
            flat[i] = y
    return tf.nest.pack_sequence_as(x, flat)


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


def all_gather(x: Any) -> Any:
    """Stacks each tensor over the replicas.

    Args:
      x: nest of tensors, whose shapes are the same on every replica.

    Returns:
      The nest with tensors of shape [num_replicas] + their shape, in the order of the replicas.
    """
    context = _context()
    expanded = _map(lambda y: tf.expand_dims(y, 0), x)
    if num_replicas() == 1:
        return expanded
    return _map(lambda y: context.all_gather(y, axis=0), expanded)


def broadcast(x: Any, source_replica: int = 0) -> Any:
    """Gives every replica the value of one.

    Args:
      x: nest of tensors; evaluated on all replicas.
      source_replica: whose value counts.

    Raises:
      ConfigError: no such replica.
    """
    if not 0 <= source_replica < num_replicas():
        raise errors.ConfigError(
            f"expected source_replica in [0, {num_replicas()}), got {source_replica}; "
            "name a replica of this step"
        )
    if num_replicas() == 1:
        return tf.nest.map_structure(_identity, x)
    return _map(lambda y: y[source_replica], all_gather(x))


def map_gather(function: Callable[[Any], Any], xs: Sequence[Any]) -> list[Any]:
    """Spreads a list over the replicas, applies `function`, and gathers the results on all.

    Replica i does items i, i + N, i + 2N, ...; the results must not differ in nest or shape.

    Args:
      function: from one item to a nest of tensors.
      xs: items (the same list on every replica).

    Returns:
      `[function(x) for x in xs]`, on every replica.
    """
    size = num_replicas()
    index = _static_replica_id()
    results: list[Any] = []
    for start in range(0, len(xs), size):
        row = xs[start : start + size]
        # In a row that is too short, the last replicas repeat its first item and are ignored.
        gathered = all_gather(function(row[index] if index < len(row) else row[0]))
        results.extend(_item(gathered, k) for k in range(len(row)))
    return results


def map_reduce(function: Callable[[Any], Any], xs: Sequence[Any], op: str = "sum") -> Any:
    """Spreads a list over the replicas, applies `function`, and reduces over all items.

    Args:
      function: from one item to a nest of tensors; nests and shapes must not differ.
      xs: items (the same list on every replica), at least one.
      op: "sum", "mean", "min" or "max".

    Returns:
      The reduction of `function(x)` over all x, on every replica.

    Raises:
      ConfigError: empty list or unknown op.
    """
    if op not in OPS:
        raise errors.ConfigError(f"expected an op out of {', '.join(OPS)}, got {op!r}; use one")
    if not xs:
        raise errors.ConfigError("expected at least one item to reduce, got none; pass a list")
    combine = {"min": tf.reduce_min, "max": tf.reduce_max, "sum": tf.reduce_sum}.get(
        op, tf.reduce_mean
    )
    results = map_gather(function, xs)
    return tf.nest.map_structure(
        lambda *ys: None if ys[0] is None else combine(tf.stack(ys), axis=0), *results
    )


def _context() -> tf.distribute.ReplicaContext:
    context = tf.distribute.get_replica_context()
    if context is None:
        raise errors.ConfigError(
            "expected to be inside a replicated step, but replicas do not run here; "
            "call collectives in step_fn only"
        )
    return context


def _static_replica_id() -> int:
    value = tf.get_static_value(_context().replica_id_in_sync_group)
    return 0 if value is None else int(value)


def _item(gathered: Any, k: int) -> Any:
    return _map(lambda y: y[k], gathered)


def _identity(y: Any) -> Any:
    return y if y is None or isinstance(y, tf.IndexedSlices) else tf.convert_to_tensor(y)


def _map(function: Callable[[Any], Any], nest: Any) -> Any:
    return tf.nest.map_structure(
        lambda y: None if y is None else function(tf.convert_to_tensor(y)), nest
    )
