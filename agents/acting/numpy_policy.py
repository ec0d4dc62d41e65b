"""A policy as a NumPy function: the operations of its TensorFlow graph, called one by one.

One TensorFlow call for one observation costs several times what the arithmetic of a small network
does, and takes processor time from the learner. The function here is made from the traced graph of
the policy, so it works for every network whose operations `_HANDLERS` lists. Shapes are static:
each operation writes into an array that is allocated once, and operations that depend on nothing
but weights run only when new weights arrive.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from agents.learning.variables import check_arrays

Call = Callable[[], Any]


class UnsupportedOperationError(Exception):
    """The graph has an operation that this module does not support."""


class NumpyPolicy:
    """A policy that is computed without TensorFlow."""

    def __init__(self, act: Any, variables: Mapping[str, tf.Variable]):
        """Translates the graph of a policy.

        Args:
          act: a `tf.types.experimental.ConcreteFunction` of one argument of static shape, an array
            of observations [B, ...].
          variables: those of the policy's networks, by path.

        Raises:
          UnsupportedOperationError: if the graph has an unsupported operation, shape or dtype, or
            reads a variable that is not in `variables`.
        """
        self._variables = variables
        self._weights = {path: np.empty(v.shape, _dtype(v)) for path, v in variables.items()}
        graph = _Graph(act, variables, self._weights)
        self._input, self._on_load, self._calls = graph.input, graph.on_load, graph.calls
        outputs = tree.flatten(act.structured_outputs)
        self._structure = tree.map_structure(lambda output: None, act.structured_outputs)
        self._outputs = [graph.array(output) for output in outputs]

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

    def stateful_random_op(self) -> None:
        """Returns None: no random operation is supported."""


class _Graph:
    """Translates a graph into calls that read and write static arrays.

    Attributes:
      input: the array that the calls read observations from.
      calls: compute the outputs from `input`, in order.
      on_load: to be called after a change of weights, in order.
    """

    def __init__(
        self, act: Any, variables: Mapping[str, tf.Variable], weights: Mapping[str, np.ndarray]
    ):
        self.calls: list[Call] = []
        self.on_load: list[Call] = []
        self._arrays: dict[str, np.ndarray] = {}
        self._varying: set[str] = set()  # Tensors that depend on the observations.
        observations = act.inputs[0]
        self.input = np.empty(_shape(observations), _dtype(observations))
        self._arrays[observations.name] = self.input
        self._varying.add(observations.name)
        self._captures = self._read_captures(act, variables, weights)
        needed = _ancestors(tree.flatten(act.structured_outputs))
        for op in act.graph.get_operations():
            if op.type in _SKIPPED:
                continue
            # Operations that no output needs are checked, too: they may change a variable.
            if op.type not in _HANDLERS and not _is_constant(op):
                raise UnsupportedOperationError(f"{op.type} ({op.name})")
            if op in needed:
                self._translate(op)

    def array(self, tensor: Any) -> np.ndarray:
        """Returns the array that holds a tensor's value after the calls."""
        return self._arrays[tensor.name]

    def _read_captures(
        self, act: Any, variables: Mapping[str, tf.Variable], weights: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        paths = {id(variable.handle): path for path, variable in variables.items()}
        resources = {}
        for outside, inside in act.graph.captures:
            if outside.dtype != tf.resource:
                self._arrays[inside.name] = outside.numpy()
            elif id(outside) in paths:
                resources[inside.name] = weights[paths[id(outside)]]
            else:
                raise UnsupportedOperationError(f"a variable that is not a weight: {inside.name}")
        return resources

    def _translate(self, op: Any) -> None:
        if op.type == "ReadVariableOp":
            self._arrays[op.outputs[0].name] = self._captures[op.inputs[0].name]
            return
        if _is_constant(op):
            for output in op.outputs:
                self._arrays[output.name] = np.asarray(tf.get_static_value(output))
            return
        inputs = [self._arrays[tensor.name] for tensor in op.inputs]
        outputs, calls = _HANDLERS[op.type](op, inputs)
        self._arrays.update(zip(_names(op.outputs), outputs, strict=True))
        if any(tensor.name in self._varying for tensor in op.inputs):
            self._varying.update(_names(op.outputs))
            self.calls += calls
        else:
            self.on_load += calls


def _ancestors(tensors: Sequence[Any]) -> set[Any]:
    """Returns the operations from which the tensors are computed."""
    found: set[Any] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs]
    return found


def _is_constant(op: Any) -> bool:
    return bool(op.outputs) and all(tf.get_static_value(out) is not None for out in op.outputs)


def _names(tensors: Sequence[Any]) -> list[str]:
    return [tensor.name for tensor in tensors]


def _shape(tensor: Any) -> list[int]:
    if not tensor.shape.is_fully_defined():
        raise UnsupportedOperationError(f"a shape known only later: {tensor.name}")
    return tensor.shape.as_list()


def _dtype(tensor: Any) -> Any:
    if tensor.dtype not in _DTYPES:
        raise UnsupportedOperationError(f"dtype {tensor.dtype.name}: {tensor.name}")
    return tensor.dtype.as_numpy_dtype


# bfloat16 and float16 are slow in NumPy.
_DTYPES = (tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8, tf.bool)

# A handler gets an operation and the arrays of its inputs. It returns the arrays of its outputs,
# new ones or views of the inputs, and the calls that fill them.
Handler = Callable[[Any, list[np.ndarray]], tuple[list[np.ndarray], list[Call]]]


def _new(op: Any) -> np.ndarray:
    return np.empty(_shape(op.outputs[0]), _dtype(op.outputs[0]))


def _ufunc(*steps: Callable[..., Any]) -> Handler:
    """A handler that applies functions, each called with (*inputs, out), in turn.

    The first gets the inputs of the operation, the others the result of the one before.
    """

    def handle(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
        out = _new(op)
        first, *others = steps
        calls = [functools.partial(first, *inputs, out)]
        return [out], calls + [functools.partial(step, out, out) for step in others]

    return handle


def _view(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    """The same numbers in another shape."""
    view = inputs[0].view()
    try:
        view.shape = tuple(_shape(op.outputs[0]))
    except AttributeError:  # The input is not contiguous.
        out = _new(op)
        return [out], [lambda: np.copyto(out, inputs[0].reshape(out.shape))]
    return [view], []


def _identity(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    return list(inputs), []


def _floating(handler: Handler) -> Handler:
    """The same handler, for floats only.

    TensorFlow rounds the mean of integers towards zero, after a sum that may overflow, and does not
    multiply or divide some.
    """

    def handle(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
        if not op.outputs[0].dtype.is_floating:
            raise UnsupportedOperationError(f"{op.type} of {op.outputs[0].dtype.name}: {op.name}")
        return handler(op, inputs)

    return handle


def _cast(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    out = _new(op)
    if out.dtype == np.uint8 and inputs[0].dtype.kind == "f":
        # For negative floats, the results of TensorFlow and NumPy differ.
        raise UnsupportedOperationError(f"Cast of {inputs[0].dtype} to uint8: {op.name}")
    return [out], [lambda: np.copyto(out, inputs[0], casting="unsafe")]


def _matmul(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    a, b = inputs
    a = a.T if op.get_attr("transpose_a") else a
    b = b.T if op.get_attr("transpose_b") else b
    out = _new(op)
    return [out], [functools.partial(np.matmul, a, b, out)]


def _bias_add(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    if op.get_attr("data_format") != b"NHWC":
        raise UnsupportedOperationError(f"BiasAdd of another axis than the last: {op.name}")
    return _ufunc(np.add)(op, inputs)


def _reduction(reduce: Callable[..., Any], is_mean: bool = False) -> Handler:
    def handle(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
        x, axis = inputs[0], tuple(np.ravel(inputs[1]).tolist())
        if not x.size:
            raise UnsupportedOperationError(f"{op.type} of nothing: {op.name}")
        out = _new(op)
        keep = op.get_attr("keep_dims")
        calls: list[Call] = [functools.partial(reduce, x, axis, None, out, keep)]
        if is_mean:
            share = out.dtype.type(out.size / x.size)
            calls.append(functools.partial(np.multiply, out, share, out))
        return [out], calls

    return handle


def _concat(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    *parts, axis = inputs
    out = _new(op)
    return [out], [functools.partial(np.concatenate, parts, int(axis), out)]


def _split(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    axis, x = inputs
    return np.split(x, len(op.outputs), int(axis)), []


def _split_v(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    x, _, axis = inputs
    sizes = [_shape(output)[int(axis)] for output in op.outputs]
    return np.split(x, np.cumsum(sizes)[:-1], int(axis)), []


def _strided_slice(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    x, begin, end, strides = inputs
    is_set = {
        name: functools.partial(lambda mask, i: bool(mask >> i & 1), op.get_attr(f"{name}_mask"))
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    index: list[Any] = []
    for i, (start, stop, stride) in enumerate(zip(begin, end, strides, strict=True)):
        if is_set["ellipsis"](i):
            index.append(Ellipsis)
        elif is_set["new_axis"](i):
            index.append(None)
        elif is_set["shrink_axis"](i):
            # A slice: indexing with a number would copy a scalar.
            index.append(slice(int(start), None if start == -1 else int(start) + 1))
        else:
            first = None if is_set["begin"](i) else int(start)
            index.append(slice(first, None if is_set["end"](i) else int(stop), int(stride)))
    return _view(op, [x[tuple(index)]])


def _select(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    condition, x, y = inputs
    out = _new(op)
    return [out], [
        functools.partial(np.copyto, out, y),
        functools.partial(np.copyto, out, x, where=condition),
    ]


def _softmax(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    (x,) = inputs
    out = _new(op)
    scale = np.empty((*out.shape[:-1], 1), out.dtype)
    return [out], [
        functools.partial(np.maximum.reduce, x, -1, None, scale, True),
        functools.partial(np.subtract, x, scale, out),
        functools.partial(np.exp, out, out),
        functools.partial(np.add.reduce, out, -1, None, scale, True),
        functools.partial(np.divide, out, scale, out),
    ]


def _elu(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    (x,) = inputs
    out, zero = _new(op), _zero(op)
    positive = np.empty_like(out)
    return [out], [
        functools.partial(np.minimum, x, zero, out),
        functools.partial(np.expm1, out, out),
        functools.partial(np.maximum, x, zero, positive),
        functools.partial(np.add, out, positive, out),
    ]


def _relu(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    out = _new(op)
    return [out], [functools.partial(np.maximum, inputs[0], _zero(op), out)]


def _leaky_relu(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    (x,), out, alpha = inputs, _new(op), op.get_attr("alpha")
    if not 0 < alpha <= 1:
        raise UnsupportedOperationError(f"LeakyRelu with alpha {alpha}: {op.name}")
    slope = out.dtype.type(alpha)
    return [out], [
        functools.partial(np.multiply, x, slope, out),
        functools.partial(np.maximum, x, out, out),
    ]


def _softplus(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    out = _new(op)
    return [out], [functools.partial(np.logaddexp, inputs[0], _zero(op), out)]


def _sigmoid(op: Any, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[Call]]:
    # Via tanh, which does not overflow.
    out = _new(op)
    half = out.dtype.type(0.5)
    return [out], [
        functools.partial(np.multiply, inputs[0], half, out),
        functools.partial(np.tanh, out, out),
        functools.partial(np.multiply, out, half, out),
        functools.partial(np.add, out, half, out),
    ]


def _zero(op: Any) -> Any:
    return _dtype(op.outputs[0])(0)


def _squared_difference(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    np.subtract(x, y, out)
    np.multiply(out, out, out)


_HANDLERS: dict[str, Handler] = {
    "Abs": _ufunc(np.absolute),
    "AddV2": _ufunc(np.add),
    "BiasAdd": _bias_add,
    "Cast": _cast,
    "ConcatV2": _concat,
    "Elu": _elu,
    "Exp": _ufunc(np.exp),
    "ExpandDims": _view,
    "Expm1": _ufunc(np.expm1),
    "Greater": _ufunc(np.greater),
    "GreaterEqual": _ufunc(np.greater_equal),
    "Identity": _identity,
    "IdentityN": _identity,
    "LeakyRelu": _leaky_relu,
    "Less": _ufunc(np.less),
    "LessEqual": _ufunc(np.less_equal),
    "Log": _ufunc(np.log),
    "Log1p": _ufunc(np.log1p),
    "MatMul": _floating(_matmul),
    "Max": _reduction(np.maximum.reduce),
    "Maximum": _ufunc(np.maximum),
    "Mean": _floating(_reduction(np.add.reduce, is_mean=True)),
    "Min": _reduction(np.minimum.reduce),
    "Minimum": _ufunc(np.minimum),
    "Mul": _ufunc(np.multiply),
    "Neg": _ufunc(np.negative),
    "Pow": _ufunc(np.power),
    "ReadVariableOp": _identity,
    "RealDiv": _floating(_ufunc(np.divide)),
    "Relu": _relu,
    "Reshape": _view,
    "Rsqrt": _ufunc(np.sqrt, np.reciprocal),
    "SelectV2": _select,
    "Sigmoid": _sigmoid,
    "Sign": _ufunc(np.sign),
    "Softmax": _softmax,
    "Softplus": _softplus,
    "Split": _split,
    "SplitV": _split_v,
    "Sqrt": _ufunc(np.sqrt),
    "Square": _ufunc(np.square),
    "SquaredDifference": _ufunc(_squared_difference),
    "Squeeze": _view,
    "StopGradient": _identity,
    "StridedSlice": _strided_slice,
    "Sub": _ufunc(np.subtract),
    "Sum": _reduction(np.add.reduce),
    "Tanh": _ufunc(np.tanh),
}
# Operations that compute nothing.
_SKIPPED = frozenset({"NoOp", "Placeholder"})
