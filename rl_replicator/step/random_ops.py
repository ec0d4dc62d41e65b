"""Finds random operations whose state is internal to TensorFlow, not in a variable."""

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

_SEEDS = {"seed", "seed2"}
# TensorFlow does not declare these as stateful, but they are, unless they always draw the same
# regions.
_POOLS = ("FractionalAvgPool", "FractionalMaxPool")


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


def find(function: tf.types.experimental.ConcreteFunction) -> str | None:
    """Returns the type and name of the first stateful operation in a traced function, or None."""
    definition = function.graph.as_graph_def()
    for nodes in (definition.node, *(f.node_def for f in definition.library.function)):
        for node in nodes:
            if is_stateful(node):
                return f"{node.op} ({node.name})"
    return None
