"""Finds the variables that a graph assigns, also in the functions that it calls."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

# All operations that take a variable's handle and leave the variable as it is. Any other counts as
# an assignment: of an optimizer, a scatter, or a random generator that goes on.
_READS = frozenset(
    (
        "DisableCopyOnRead",
        "IsResourceHandleRefCounting",
        "ReadVariableOp",
        "ReadVariableXlaSplitND",
        "ResourceGather",
        "ResourceGatherNd",
        "VarIsInitializedOp",
        "VariableShape",
        "_ReadVariablesOp",
    )
)
# They pass a handle on; on TPUs, a step uses one of the handles of all cores.
_ALIASES = ("Identity", "TPUReplicatedInput")


def assigned(
    captures: Iterable[tuple[tf.Tensor, tf.Tensor]], variables: Iterable[tf.Variable]
) -> list[tf.Variable]:
    """Returns those variables that a graph assigns, in the same order.

    Args:
      captures: pairs of a tensor outside of the graph and its placeholder inside, as
        `graph.captures` has them. The graph may still be incomplete.
      variables: variables as they were created, each with the copies of all replicas.
    """
    search = _Search()
    inside: dict[int, list[tf.Tensor]] = {}
    for handle, placeholder in captures:
        inside.setdefault(id(handle), []).append(placeholder)
    return [
        variable
        for variable in variables
        if any(
            search.is_assigned(placeholder)
            for handle in handle_ids(variable)
            for placeholder in inside.get(handle, ())
        )
    ]


def assigns(op: str) -> bool:
    """Whether an operation that takes a variable's handle, and calls no function, assigns it."""
    return op not in _READS


def called(node: Any) -> list[str]:
    """Returns the names of the functions that a `NodeDef` calls; of a loop, first the condition."""
    found = []
    for _, attribute in sorted(node.attr.items(), key=lambda item: item[0] != "cond"):
        if attribute.HasField("func"):
            found.append(attribute.func.name)
        found.extend(function.name for function in attribute.list.func)
    return found


def copies(variable: tf.Variable) -> Sequence[tf.Variable]:
    """Returns the copies of all replicas of a variable; itself if it has none."""
    return getattr(variable, "values", None) or (variable,)


def packed(variable: tf.Variable) -> Any:
    """Returns all copies of a variable as one, as steps on TPUs take them; None elsewhere."""
    return getattr(variable, "_packed_var", None)


def handle_ids(variable: tf.Variable) -> set[int]:
    """The ids of the handles of all copies; on TPUs also of their one packed handle.

    They tell what a variable is also if Keras has wrapped it, to cast what it reads.
    """
    own = packed(variable)
    return {id(copy.handle) for copy in copies(variable)} | (
        set() if own is None else {id(own.packed_handle)}
    )


class _Search:
    """Remembers which of their arguments the functions assign."""

    def __init__(self) -> None:
        # By name: the number of arguments, and the positions of those that are assigned.
        self._known: dict[str, tuple[int, set[int]]] = {}

    def is_assigned(self, handle: tf.Tensor) -> bool:
        for user in handle.consumers():
            if user.type in _ALIASES:
                if any(self.is_assigned(output) for output in user.outputs):
                    return True
            elif assigns(user.type):
                places = {i for i, x in enumerate(user.inputs) if x is handle}
                if self._assigned_inputs(user.node_def, places):
                    return True
        return False

    def _assigned_inputs(self, node: Any, places: set[int]) -> set[int]:
        """Returns which inputs of a node it assigns.

        Args:
          node: a `NodeDef`.
          places: positions of the inputs that are handles.
        """
        functions = called(node)
        if not functions:
            return places if assigns(node.op) else set()
        num_inputs = sum(name[0] != "^" for name in node.input)
        found: set[int] = set()
        for name in functions:
            num_arguments, assigned_arguments = self._function(name)
            # The arguments come last, behind the condition of `tf.cond` or the index of a case.
            first = num_inputs - num_arguments
            if first < 0:  # Of a dataset, whose elements are arguments too.
                return places
            found |= {place for place in places if place - first in assigned_arguments}
        return found

    def _function(self, name: str) -> tuple[int, set[int]]:
        if name not in self._known:
            definition = context.get_function_def(name)
            arguments = definition.signature.input_arg
            # Argument by the name of the node that has its handle for output.
            aliases = {
                argument.name: place
                for place, argument in enumerate(arguments)
                if argument.type == tf.resource.as_datatype_enum
            }
            found: set[int] = set()
            for node in definition.node_def:
                sources = [aliases.get(x.partition(":")[0]) for x in node.input if x[0] != "^"]
                places = {i: source for i, source in enumerate(sources) if source is not None}
                if node.op in _ALIASES and places:
                    aliases[node.name] = places[0]
                elif places:
                    found |= {places[i] for i in self._assigned_inputs(node, set(places))}
            self._known[name] = len(arguments), found
        return self._known[name]
