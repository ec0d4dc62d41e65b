"""Random operations whose state is TensorFlow's own, and in no variable."""

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

_SEEDS = {"seed", "seed2"}
# TensorFlow does not declare them as stateful; they are, unless they always draw the same regions.
_POOLS = ("FractionalAvgPool", "FractionalMaxPool")


def is_stateful(node: Any) -> bool:
    """Whether a `NodeDef` draws random numbers from a state that is in no variable.

    `tf.random.Generator` does not: its state is a variable. Nor does an LSTM on a GPU, whose
    operation could drop out units, but drops none.
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
    """Returns the type and the name of such an operation in a traced function; None without one."""
    definition = function.graph.as_graph_def()
    for nodes in (definition.node, *(f.node_def for f in definition.library.function)):
        for node in nodes:
            if is_stateful(node):
                return f"{node.op} ({node.name})"
    return None
