"""Outputs of a step: one result per replica, joined, split, gathered and reduced."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.collectives import collectives
from rl_replicator.graphs import leaves

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class PerReplica:
    """One tensor from each replica: a leaf of a step's outputs on several replicas."""

    values: tuple[Any, ...]


def join(results: Sequence[Any]) -> Any:
    """Joins the results of this process's replicas into one nest; see `split`.

    Args:
      results: nests of the same structure, one per replica.

    Returns:
      The nest, with `PerReplica` leaves if there are several results.
    """
    if len(results) == 1:
        return results[0]
    return tf.nest.map_structure(lambda *xs: None if xs[0] is None else PerReplica(xs), *results)


def describe(result: Any) -> str:
    """Describes the nest of one replica's result; results with equal descriptions can be joined."""
    flat = ["None" if leaf is None else "a tensor" for _, leaf in leaves.with_paths(result)]
    return f"results {tf.nest.pack_sequence_as(result, flat)}".replace("'", "")


def split(outputs: Any, num_replicas: int) -> tuple[Any, ...]:
    """Splits outputs into the result of each replica of this process; the inverse of `join`.

    Args:
      outputs: a nest; NumPy arrays and numbers belong to every replica.
      num_replicas: number of replicas of this process.

    Raises:
      ConfigError: if the outputs are those of another number of replicas.
    """
    for path, leaf in leaves.with_paths(outputs):
        # The tensors of several replicas are always in a `PerReplica`.
        found = len(leaf.values) if isinstance(leaf, PerReplica) else int(tf.is_tensor(leaf))
        if found and found != num_replicas:
            raise errors.ConfigError(
                f"expected outputs of {num_replicas} replica(s), got {found}"
                f"{leaves.place(path)}; use the replicator whose step returned them"
            )

    def pick(leaf: Any, index: int) -> Any:
        return leaf.values[index] if isinstance(leaf, PerReplica) else leaf

    return tuple(
        tf.nest.map_structure(lambda leaf, i=i: pick(leaf, i), outputs) for i in range(num_replicas)
    )


def stack(results: Sequence[Any]) -> Any:
    """Stacks results over the replicas.

    Args:
      results: nests of the same structure, one per replica.

    Returns:
      The nest of NumPy arrays, each of shape [num_replicas, ...].

    Raises:
      ConfigError: if an output has different shapes on different replicas.
    """
    flat = [leaves.with_paths(result) for result in results]
    stacked = [
        _stack(each[0][0], [output for _, output in each]) for each in zip(*flat, strict=True)
    ]
    return tf.nest.pack_sequence_as(results[0], stacked)


def reduce(op: str, stacked: Any) -> Any:
    """Reduces stacked results over the replicas.

    Args:
      op: "mean", "sum", "min" or "max".
      stacked: nest of NumPy arrays [num_replicas, ...].

    Returns:
      The nest of NumPy arrays [...]. The mean of integers is float32.

    Raises:
      ConfigError: if an array cannot be reduced, as in `collectives.all_reduce`.
    """
    for path, x in leaves.with_paths(stacked):
        if x is not None:
            collectives.check_reducible(tf.as_dtype(x.dtype), op, leaves.place(path))
    return tf.nest.map_structure(lambda x: None if x is None else _REDUCTIONS[op](x), stacked)


def _mean(x: Array) -> Array:
    if _is_half(x):
        return np.asarray(x.mean(axis=0, dtype=np.float32)).astype(x.dtype)
    return np.asarray(x.mean(axis=0, dtype=np.float32 if x.dtype.kind in "iub" else None))


def _sum(x: Array) -> Array:
    dtype = np.float32 if _is_half(x) else x.dtype
    return np.asarray(x.sum(axis=0, dtype=dtype)).astype(x.dtype)


def _is_half(x: Array) -> bool:
    """Whether the dtype is float16 or bfloat16, in which NumPy would also accumulate sums."""
    return x.dtype in (tf.float16.as_numpy_dtype, tf.bfloat16.as_numpy_dtype)


_REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "mean": _mean,
    "sum": _sum,
    "min": lambda x: x.min(axis=0),
    "max": lambda x: x.max(axis=0),
}


def _stack(path: Sequence[Any], outputs: Sequence[Any]) -> Array | None:
    if outputs[0] is None:
        return None
    # NumPy alone cannot read a bfloat16 scalar tensor.
    values = [x.numpy() if isinstance(x, tf.Tensor) else x for x in outputs]
    shapes = dict.fromkeys(map(np.shape, values))
    if len(shapes) > 1:
        raise errors.ConfigError(
            f"expected outputs of the same shape on all replicas{leaves.place(path)}, got "
            f"{', '.join(map(str, shapes))}; pad them, or reduce them in the step"
        )
    # NumPy's own strings have a fixed length and lose trailing zero bytes.
    values = [np.array(x, object) if isinstance(x, bytes) else x for x in values]
    stacked: Array = np.stack(values)
    return stacked
