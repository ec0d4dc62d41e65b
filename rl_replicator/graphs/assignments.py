"""Finds the variables that a graph assigns, including in the functions that it calls."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

# All operations that take a variable's handle without changing the variable. Any other counts as an
# assignment: an optimizer's update, a scatter, or a random generator that advances its state.
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
    """Whether an operation that takes a variable's handle, and calls no function, assigns to it."""
    return op not in _READS


def called(node: Any) -> list[str]:
    """Returns the names of the functions that a `NodeDef` calls; a loop's condition comes first."""
    found = []
    for _, attribute in sorted(node.attr.items(), key=lambda item: item[0] != "cond"):
        if attribute.HasField("func"):
            found.append(attribute.func.name)
        found.extend(function.name for function in attribute.list.func)
    return found


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


class _Search:
    """Searches functions for assignments; caches which of its arguments each function assigns."""

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
        """Returns the positions of the inputs that a node assigns.

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
            # The arguments come last, after the condition of `tf.cond` or the index of a case.
            first = num_inputs - num_arguments
            if first < 0:  # A dataset's function, whose arguments include the elements.
                return places
            found |= {place for place in places if place - first in assigned_arguments}
        return found

    def _function(self, name: str) -> tuple[int, set[int]]:
        if name not in self._known:
            definition = context.get_function_def(name)
            arguments = definition.signature.input_arg
            # Position of an argument, by the name of the node that outputs its handle.
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
