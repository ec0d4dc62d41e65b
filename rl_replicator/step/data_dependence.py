"""Finds variables to which a step assigns values of a single replica's data."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator.graphs import assignments

# A mask is a set of replicas on whose data a value depends, as bits.
_Value = Any  # A mask, a `_Resource`, or a list of these for the outputs of a node.
_MOST_ITERATIONS = 8


class _Resource:
    """A variable's handle, and the replicas whose data its value depends on."""

    def __init__(self) -> None:
        self.mask = 0


def assigned_from_local_data(
    function: tf.types.experimental.ConcreteFunction,
    num_replicas: int,
    num_inputs: int,
    has_other_processes: bool,
) -> list[tf.Tensor]:
    """Follows the data through the graph of a step, from the rows to the variables.

    A value that depends only on the rows of some replicas differs between replicas. A reduced value
    depends on the rows of all. Random operations and callable inputs cannot be followed, so this
    does not find every variable that differs. Conversely, a value that was computed from local data
    may still be equal on all replicas, such as the size of a batch.

    Args:
      function: one step of all replicas of this process.
      num_replicas: number of replicas of this process.
      num_inputs: number of its inputs that are parts of rows: first those of replica 0, and so on.
      has_other_processes: whether values must go through a collective operation to be equal.

    Returns:
      The handles of the variables that are assigned such values.
    """
    graph = function.graph
    definition = graph.as_graph_def()
    names = [x.op.name for x in graph.inputs]
    environment: dict[str, _Value] = {
        name: 1 << (i * num_replicas // num_inputs) for i, name in enumerate(names[:num_inputs])
    }
    resources = []
    for handle, inside in graph.captures:
        if inside.dtype == tf.resource:
            resources.append((handle, _Resource()))
            environment[inside.op.name] = resources[-1][1]
    library = {f.signature.name: f for f in definition.library.function}
    _Flow(library).follow(definition.node, environment, 0)
    everything = 0 if has_other_processes else (1 << num_replicas) - 1
    return [handle for handle, resource in resources if resource.mask not in (0, everything)]


class _Flow:
    """Follows data through nodes, and through the functions that they call."""

    def __init__(self, library: Mapping[str, Any]):
        self._library = library

    def follow(self, nodes: Iterable[Any], environment: dict[str, _Value], control: int) -> None:
        """Adds the value of every node to `environment`.

        Args:
          nodes: the nodes in the order in which they were made, so that inputs come first.
          environment: values by node name, arguments included.
          control: mask of the data that determines whether the nodes run.
        """
        for node in nodes:
            if node.name not in environment:
                inputs = [_read(environment, x) for x in node.input if x[0] != "^"]
                environment[node.name] = self._value(node, inputs, control)

    def _value(self, node: Any, inputs: list[_Value], control: int) -> _Value:
        if node.op == "Identity":
            return inputs[0]
        if node.op == "IdentityN":  # From `tf.custom_gradient`: its results and its arguments.
            return inputs
        if node.op.startswith(("Collective", "NcclAllReduce")):
            return 0
        functions = assignments.called(node)
        if functions:
            return self._call(node.op, functions, inputs, control)
        mask = _mask(inputs) | control
        if inputs and isinstance(inputs[0], _Resource) and _assigns_data(node.op):
            values = _mask(inputs[1:]) | control
            kept = 0 if node.op == "AssignVariableOp" and not control else inputs[0].mask
            inputs[0].mask = kept | values
        return mask

    def _call(
        self, op: str, functions: Sequence[str], inputs: list[_Value], control: int
    ) -> _Value:
        if op in ("If", "StatelessIf", "Case", "StatelessCase"):
            control, inputs = control | _mask(inputs[:1]), inputs[1:]
        for _ in range(_MOST_ITERATIONS if "While" in op else 1):
            before = [_mask([x]) for x in inputs]
            result = 0
            for name in functions:
                function = self._library.get(name)
                if function is None or len(function.signature.input_arg) != len(inputs):
                    # For example a dataset's function, whose arguments include the elements.
                    return _mask(inputs) | control
                values = self._run(function, inputs, control)
                result |= _mask(values)
                if "While" in op:
                    if len(values) == len(inputs):  # The loop's body; its condition has one output.
                        inputs = [
                            x if isinstance(x, _Resource) else x | _mask([y])
                            for x, y in zip(inputs, values, strict=True)
                        ]
                    else:
                        control |= _mask(values)
            if before == [_mask([x]) for x in inputs]:
                break
        return result | control

    def _run(self, function: Any, inputs: list[_Value], control: int) -> list[_Value]:
        names = [argument.name for argument in function.signature.input_arg]
        environment = dict(zip(names, inputs, strict=True))
        self.follow(function.node_def, environment, control)
        outputs = [function.ret[x.name] for x in function.signature.output_arg]
        return [_read(environment, x) for x in outputs]


def _read(environment: Mapping[str, _Value], name: str) -> _Value:
    """Returns the value of "node", "node:index" or "node:output:index"."""
    parts = name.split(":")
    value = environment.get(parts[0], 0)
    if isinstance(value, list):
        return value[int(parts[-1]) if len(parts) > 1 else 0]
    return value


def _mask(values: Iterable[_Value]) -> int:
    mask = 0
    for value in values:
        mask |= value.mask if isinstance(value, _Resource) else value
    return mask


def _assigns_data(op: str) -> bool:
    """Whether an operation on a variable assigns a value that is computed from data."""
    # A generator's state advances by the number of values drawn, which follows from the size of a
    # batch and is the same on all replicas.
    return assignments.assigns(op) and not op.startswith(("Rng", "Stateful"))
