"""Finds the variables that a graph assigns, including in the functions that it calls."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils as control_deps

# Operations that forward a handle. On TPUs, the second one merges the handles of all cores.
_ALIASES = ("Identity", "TPUReplicatedInput")


def assigned(
    captures: Iterable[tuple[tf.Tensor, tf.Tensor]], variables: Iterable[tf.Variable]
) -> list[tf.Variable]:
    """Returns those of the variables that a graph assigns, in the same order.

    Args:
      captures: pairs of a tensor outside of the graph and its placeholder inside, as
        in `graph.captures`. The graph may still be incomplete.
      variables: variables as they were created, each with the copies of all replicas.
    """
    inside: dict[int, list[tf.Tensor]] = {}
    for handle, placeholder in captures:
        inside.setdefault(id(handle), []).append(placeholder)
    return [
        variable
        for variable in variables
        if any(
            any(writers(placeholder))
            for handle in handle_ids(variable)
            for placeholder in inside.get(handle, ())
        )
    ]


def writers(handle: tf.Tensor) -> Iterator[tf.Operation]:
    """Yields the operations that may change a variable, given its handle inside a graph.

    An operation that calls functions counts if one of these changes it.
    """
    for user in handle.consumers():
        if user.type in _ALIASES:
            for output in user.outputs:
                yield from writers(output)
        elif handle in control_deps.get_read_write_resource_inputs(user)[1]:
            yield user


def copies(variable: tf.Variable) -> Sequence[tf.Variable]:
    """Returns the copies of a variable on all replicas; the variable itself if it has none."""
    return getattr(variable, "values", None) or (variable,)


def packed(variable: tf.Variable) -> Any:
    """Returns all copies of a variable as one, as steps on TPUs use them; None elsewhere."""
    return getattr(variable, "_packed_var", None)


def handle_ids(variable: tf.Variable) -> set[int]:
    """Returns the ids of the handles of all copies and, on TPUs, of their one packed handle.

    They identify a variable even inside Keras' wrapper that casts its value.
    """
    own = packed(variable)
    return {id(copy.handle) for copy in copies(variable)} | (
        set() if own is None else {id(own.packed_handle)}
    )
