"""A policy as a NumPy function: the operations of its TensorFlow graph, called one by one.

One TensorFlow call for one observation costs several times what the arithmetic of a small network
does, and takes processor time from the learner. The function here is made from the traced graph of
the policy, so it works for every network whose operations `rl_replicator.exports.program` lists.
Shapes are static: each operation writes into an array that is allocated once, and operations that
depend on nothing but weights run only when new weights arrive.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from agents.learning.variables import check_arrays
from rl_replicator.exports.program import NotPortableError, Writer
from rl_replicator.exports.standalone import unpacked

# TensorFlow computes these faster.
_SLOW = ("Conv", "MaxPool")


class NumpyPolicy:
    """A policy that is computed without TensorFlow."""

    def __init__(self, act: Any, variables: Mapping[str, tf.Variable]):
        """Translates the graph of a policy.

        Args:
          act: a `tf.types.experimental.ConcreteFunction` of one argument of static shape, an array
            of observations [B, ...].
          variables: those of the policy's networks, by path.

        Raises:
          NotPortableError: if the graph has an operation that NumPy lacks or computes slowly,
            changes a variable, or reads one that is not in `variables`.
        """
        for op in act.graph.get_operations():
            if op.op_def.is_stateful and op.type != "ReadVariableOp":
                raise NotPortableError(f"expected a policy without effects, got {op.type}")
        self._variables = variables
        self._weights = {path: np.array(v.numpy()) for path, v in variables.items()}
        paths = {id(variable.handle): path for path, variable in variables.items()}
        observations = act.inputs[0]
        self._input = np.zeros(observations.shape, observations.dtype.as_numpy_dtype)
        values = {observations.name: self._input}
        for outside, inside in act.graph.captures:
            if id(outside) in paths:
                values[inside.name] = self._weights[paths[id(outside)]]
            elif outside.dtype != tf.resource:
                values[inside.name] = outside.numpy()
        outputs = tree.flatten(act.structured_outputs)
        writer = Writer({name: name for name in values}, outputs)
        values |= writer.constants
        self._on_load: list[Callable[[], Any]] = []
        self._calls: list[Callable[[], Any]] = []
        varying = {observations.name}  # What depends on the observations.
        for operation in writer.operations:
            if operation["op"] in _SLOW:
                raise NotPortableError(f"expected operations fast in NumPy, got {operation['op']}")
            function, names, out = unpacked(operation)
            inputs = [values[name] for name in names]
            with np.errstate(all="ignore"):
                values[out] = np.asarray(function(*inputs, None))
            is_varying = not varying.isdisjoint(names)
            varying |= {out} if is_varying else set()
            if not any(np.may_share_memory(values[out], x) for x in inputs):  # It is no view.
                call = functools.partial(function, *inputs, values[out])
                (self._calls if is_varying else self._on_load).append(call)
        self._outputs = [values[writer.value(output)] for output in outputs]
        self._structure = tree.map_structure(lambda output: None, act.structured_outputs)

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copies weights.

        Args:
          arrays: path -> array; may have other paths too.

        Raises:
          ValueError: if a variable has no array or one of another shape.
        """
        check_arrays(self._variables, arrays)
        for path, weights in self._weights.items():
            np.copyto(weights, arrays[path])
        with np.errstate(all="ignore"):
            for call in self._on_load:
                call()

    def __call__(self, observations: np.ndarray) -> Any:
        """Evaluates the policy.

        Args:
          observations: [B, ...] of the shape for which the graph was traced.

        Returns:
          A nest of fresh [B, ...] arrays.

        Raises:
          ValueError: if they have another shape.
        """
        if observations.shape != self._input.shape:  # NumPy would broadcast a single number.
            raise ValueError(
                f"expected observations of shape {self._input.shape}, got {observations.shape}; "
                "pass observations from its environment"
            )
        np.copyto(self._input, observations)
        with np.errstate(all="ignore"):  # As TensorFlow does.
            for call in self._calls:
                call()
        return tree.unflatten_as(self._structure, [output.copy() for output in self._outputs])
