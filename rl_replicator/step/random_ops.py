"""Finds random operations whose state is internal to TensorFlow, not in a variable."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from rl_replicator import errors

_SEEDS = {"seed", "seed2"}
# TensorFlow does not declare these as stateful, but they are, unless they always draw the same
# regions.
_POOLS = ("FractionalAvgPool", "FractionalMaxPool")
# In the context of `refused`: what is traced, and the remedy.
_REFUSAL: contextvars.ContextVar[tuple[str, str] | None] = contextvars.ContextVar(
    "refusal", default=None
)


def is_stateful(node: Any) -> bool:
    """Whether a `NodeDef` draws random numbers from a state that is in no variable.

    `tf.random.Generator` does not: its state is a variable. Nor does an LSTM on a GPU: its
    operation supports dropout, but the rate is 0.
    """
    if node.op in _POOLS:
        return not node.attr["deterministic"].b
    definition = op_def_registry.get(node.op)  # None for a function.
    if definition is None or not definition.is_stateful:
        return False
    if not {attribute.name for attribute in definition.attr} >= _SEEDS:
        return False
    return "dropout" not in node.attr or node.attr["dropout"].f > 0


@contextlib.contextmanager
def refused(owner: str, remedy: str) -> Iterator[None]:
    """Context in which functions that cannot be repeated are refused when they are traced.

    For deterministic runs: such an operation, for example `tf.random.normal`, draws the same
    numbers again after a restart.

    Args:
      owner: what is traced, for the error.
      remedy: what to use instead.
    """
    token = _REFUSAL.set((owner, remedy))
    try:
        yield
    finally:
        _REFUSAL.reset(token)


def check(function: tf.types.experimental.ConcreteFunction) -> None:
    """Checks a function that was traced in the context of `refused`.

    Raises:
      ConfigError: if it draws random numbers from a state that no checkpoint holds.
    """
    refusal = _REFUSAL.get()
    if refusal is None:
        return
    definition = function.graph.as_graph_def()
    for nodes in (definition.node, *(f.node_def for f in definition.library.function)):
        for node in nodes:
            if is_stateful(node):
                raise errors.ConfigError(
                    f"expected {refusal[0]} whose random numbers a resumed run can draw again, "
                    f"found {node.op} ({node.name}); {refusal[1]}, or leave out --deterministic"
                )
