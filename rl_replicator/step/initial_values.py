"""The initial values of variables that are created while a step is traced."""

from typing import Any

import tensorflow as tf

from rl_replicator import errors


def create(next_creator: Any, **kwargs: Any) -> tf.Variable:
    """Creates a variable outside of the graph; a creator for `tf.variable_creator_scope`.

    Inside the graph, the copies of the other replicas would be initialized from the first
    replica's, which TensorFlow cannot do before the first step.

    Args:
      next_creator: see `tf.variable_creator_scope`.
      **kwargs: see `tf.Variable`.

    Raises:
      ConfigError: see `known`.
    """
    kwargs["initial_value"] = known(kwargs["initial_value"], kwargs.get("name"))
    with tf.init_scope():
        return next_creator(**kwargs)


def known(initial_value: Any, name: str | None) -> Any:
    """Returns an initial value that does not depend on a graph; see `tf.Variable`.

    Args:
      initial_value: a tensor, a value that can be converted to one, or a function that returns one.
      name: name of the variable, for the error.

    Raises:
      ConfigError: if the value depends on the inputs of a graph or on variables.
    """
    if not any(tf.is_symbolic_tensor(part) for part in tf.nest.flatten(initial_value)):
        return initial_value
    value = tf.convert_to_tensor(initial_value)
    constant = tf.get_static_value(value)
    if constant is None:
        constant = _evaluated(value)
    if constant is None:
        raise errors.ConfigError(
            "expected an initial value that does not depend on the step for variable "
            f"{name or 'Variable'!r}, got {value.name!r}; create it before `replicate`, or pass a "
            "function that returns the value"
        )
    return constant


def _evaluated(value: tf.Tensor) -> Any:
    """Evaluates a tensor outside of its graph; None if it depends on the graph's inputs."""
    needed, pending = set(), [value.op]
    while pending:
        operation = pending.pop()
        if operation.type == "Placeholder":  # Also stands for variables and outer graphs' tensors.
            return None
        if operation.name not in needed:
            needed.add(operation.name)
            pending += [x.op for x in operation.inputs] + list(operation.control_inputs)
    definition = value.graph.as_graph_def()
    nodes = [node for node in definition.node if node.name in needed]
    del definition.node[:]
    definition.node.extend(nodes)

    def load() -> tf.Tensor:
        return tf.graph_util.import_graph_def(definition, return_elements=[value.name])[0]

    with tf.init_scope():
        return tf.compat.v1.wrap_function(load, [])().numpy()
