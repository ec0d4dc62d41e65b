"""Lets replicas read and change single rows of their own copies of variables."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.collectives import sums

_READS = {"gather_nd": tf.gather_nd, "sparse_read": tf.gather}
_UPDATES = (
    "batch_scatter_update",
    "count_up_to",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd_add",
    "scatter_nd_sub",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
)


def create(next_creator: Any, **kwargs: Any) -> tf.Variable:
    """Creates a variable whose row methods work as on one device; for `tf.variable_creator_scope`.

    TensorFlow lets a replica assign its own copy of a variable only as a whole. So the class of a
    variable that has copies is replaced by a subclass with these methods.

    Args:
      next_creator: see `tf.variable_creator_scope`.
      **kwargs: see `tf.Variable`.
    """
    variable = next_creator(**kwargs)
    if getattr(variable, "values", None):
        kind: Any = type(variable)
        variable.__class__ = _with_rows(kind)
    return variable


@functools.cache
def _with_rows(kind: Any) -> Any:
    body = {name: _read(name, outside) for name, outside in _READS.items()}
    body |= {name: _update(name, getattr(kind, name)) for name in _UPDATES}
    return type(kind)(kind.__name__, (kind,), body | {"__module__": kind.__module__})


def _read(method: str, outside: Callable[..., tf.Tensor]) -> Callable[..., Any]:
    """Makes a method that reads rows.

    Args:
      method: the method's name.
      outside: reads the same rows of a tensor; used outside of steps.
    """

    @tf.autograph.experimental.do_not_convert
    def read(variable: Any, indices: Any, name: str | None = None) -> tf.Tensor:
        own = _own(variable)
        if own is None:
            return outside(tf.convert_to_tensor(variable), indices, name=name)
        return getattr(own, method)(indices, name=name)

    return read


def _update(method: str, outside: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method that changes rows; see `_read`."""

    @tf.autograph.experimental.do_not_convert
    def update(variable: Any, *args: Any, **kwargs: Any) -> Any:
        own = _own(variable)
        if own is not None:
            return getattr(own, method)(*args, **kwargs)
        try:
            return outside(variable, *args, **kwargs)
        except NotImplementedError:
            raise errors.ConfigError(
                f"expected {method} of {variable.name!r} inside a step, got a call outside; use "
                "assign there"
            ) from None

    return update


def _own(variable: Any) -> tf.Variable | None:
    """Returns the copy of the replica that is being traced; None outside of a step."""
    context = tf.distribute.get_replica_context()
    if context is None or context.strategy is not variable.distribute_strategy:
        return None
    index = sums.static_replica_id()
    return None if index is None else variable.values[index % len(variable.values)]
