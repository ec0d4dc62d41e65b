"""Turns a program of portable operations into an ONNX model, using only the package `onnx`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.exports.program import Operation, PortableProgram

# Version 13 has every operation in the form used here, and newer runtimes can read it.
_OPSET = 13
_IR_VERSION = 8
# Operations whose names differ in ONNX.
_NAMES = {
    "Broadcast": "Expand",
    "GreaterEqual": "GreaterOrEqual",
    "LessEqual": "LessOrEqual",
    "Select": "Where",
}
_TO_CHANNELS_FIRST, _TO_CHANNELS_LAST = [0, 3, 1, 2], [0, 2, 3, 1]
_END = np.iinfo(np.int64).max


def build(program: PortableProgram, card: str) -> Any:
    """Builds the model.

    Args:
      program: the program.
      card: the model card, which is stored as the model's metadata.

    Returns:
      An `onnx.ModelProto`, checked.

    Raises:
      UsageError: if the package is not installed, ONNX lacks an operation for its dtype, or an
        output has the name of an input.
    """
    try:
        import onnx
    except ImportError:
        raise UsageError(
            "--format onnx: expected the package onnx, found none; install it: "
            "pip install 'rl-replicator[onnx]'"
        ) from None
    for name in program.outputs:
        if name in program.inputs:
            raise UsageError(
                f"--format onnx: expected outputs with other names than the inputs, got {name!r} "
                "for both; rename it in the model's function, or choose --format savedmodel"
            )
    graph = _Graph(program)
    for operation in program.operations:
        graph.add(operation)
    helper = onnx.helper
    for name, (value, _, _) in program.outputs.items():
        graph.node("Identity", [value], name)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "model",
            [_info(name, *spec) for name, spec in program.inputs.items()],
            [_info(name, shape, dtype) for name, (_, shape, dtype) in program.outputs.items()],
            graph.initializers,
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="rl-replicator",
    )
    helper.set_model_props(model, {"card": card})
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise UsageError(
            f"--format onnx: expected operations and dtypes that ONNX supports, got: "
            f"{' '.join(str(error).split())}; choose --format savedmodel"
        ) from error
    return model


class _Graph:
    """Collects the nodes.

    Attributes:
      nodes: nodes added so far.
      initializers: constants.
    """

    def __init__(self, program: PortableProgram):
        from onnx import numpy_helper

        self._from_array = numpy_helper.from_array
        self.nodes: list[Any] = []
        self.initializers = [
            self._from_array(array, name) for name, array in program.constants.items()
        ]

    def add(self, operation: Operation) -> None:
        """Adds an operation."""
        name: str = operation["op"]
        inputs, out = operation["in"], operation["out"]
        if name in _SPECIAL:
            _SPECIAL[name](self, operation, inputs, out)
        else:
            attributes = _ATTRIBUTES.get(name, lambda _: {})(operation)
            self.node(_NAMES.get(name) or name, inputs, out, **attributes)

    def node(self, kind: str, inputs: list[str], out: str, **attributes: Any) -> str:
        """Adds a node; returns the name of its output."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [out], name=out, **attributes))
        return out

    def numbers(self, values: list[int], name: str) -> str:
        """Adds a constant of integers; returns its name."""
        self.initializers.append(self._from_array(np.asarray(values, np.int64), name))
        return name


def _info(name: str, shape: list[int], dtype: str) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, _type_of(dtype), ["batch", *shape])


def _type_of(dtype: str) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _matmul(graph: _Graph, operation: Operation, inputs: list[str], out: str) -> None:
    sides = [
        graph.node("Transpose", [x], f"{out}/{flag}", perm=[1, 0]) if operation[flag] else x
        for x, flag in zip(inputs, ("transpose_a", "transpose_b"), strict=True)
    ]
    graph.node("MatMul", sides, out)


def _reduce(graph: _Graph, operation: Operation, inputs: list[str], out: str) -> None:
    kind, axes, keep = operation["kind"], operation["axes"], int(operation["keep"])
    if kind == "Sum":  # ReduceSum takes the axes as an input, not as an attribute.
        graph.node("ReduceSum", [*inputs, graph.numbers(axes, f"{out}/axes")], out, keepdims=keep)
    else:
        graph.node(f"Reduce{kind}", inputs, out, axes=axes, keepdims=keep)


def _shaped(graph: _Graph, operation: Operation, inputs: list[str], out: str) -> None:
    shape = graph.numbers(operation["shape"], f"{out}/shape")
    graph.node(_NAMES.get(operation["op"], "Reshape"), [*inputs, shape], out)


def _slice(graph: _Graph, operation: Operation, inputs: list[str], out: str) -> None:
    steps = operation["steps"]
    starts = [
        (_END if step < 0 else 0) if start is None else start
        for start, step in zip(operation["starts"], steps, strict=True)
    ]
    stops = [
        (-_END if step < 0 else _END) if stop is None else stop
        for stop, step in zip(operation["stops"], steps, strict=True)
    ]
    numbers = {"starts": starts, "stops": stops, "axes": [*range(len(steps))], "steps": steps}
    names = [graph.numbers(values, f"{out}/{name}") for name, values in numbers.items()]
    graph.node("Slice", [*inputs, *names], out)


def _one_hot(graph: _Graph, operation: Operation, inputs: list[str], out: str) -> None:
    # Not ONNX's OneHot, which counts negative indices from the end. TensorFlow's codes for negative
    # indices are all zeros.
    wide = graph.node("Cast", inputs, f"{out}/wide", to=_type_of("int64"))
    last = graph.numbers([-1], f"{out}/last")
    column = graph.node("Unsqueeze", [wide, last], f"{out}/column")
    classes = graph.numbers([*range(operation["depth"])], f"{out}/classes")
    is_class = graph.node("Equal", [column, classes], f"{out}/is_class")
    graph.node("Cast", [is_class], out, to=_type_of(operation["dtype"]))


def _argmax(graph: _Graph, operation: Operation, inputs: list[str], out: str) -> None:
    wide = graph.node("ArgMax", inputs, f"{out}/wide", axis=-1, keepdims=0)
    graph.node("Cast", [wide], out, to=_type_of(operation["dtype"]))


def _conv(graph: _Graph, operation: Operation, inputs: list[str], out: str) -> None:
    x = graph.node("Transpose", inputs[:1], f"{out}/x", perm=_TO_CHANNELS_FIRST)
    filters = graph.node("Transpose", inputs[1:], f"{out}/filters", perm=[3, 2, 0, 1])
    geometry = {name: operation[name] for name in ("strides", "pads")}
    y = graph.node("Conv", [x, filters], f"{out}/y", **geometry)
    graph.node("Transpose", [y], out, perm=_TO_CHANNELS_LAST)


def _max_pool(graph: _Graph, operation: Operation, inputs: list[str], out: str) -> None:
    x = graph.node("Transpose", inputs, f"{out}/x", perm=_TO_CHANNELS_FIRST)
    geometry = {name: operation[name] for name in ("strides", "pads")}
    y = graph.node("MaxPool", [x], f"{out}/y", kernel_shape=operation["size"], **geometry)
    graph.node("Transpose", [y], out, perm=_TO_CHANNELS_LAST)


# The attributes of operations that ONNX has as they are.
_ATTRIBUTES: dict[str, Callable[[Operation], dict[str, Any]]] = {
    "Cast": lambda operation: {"to": _type_of(operation["dtype"])},
    "Concat": lambda operation: {"axis": operation["axis"]},
    "Gather": lambda operation: {"axis": operation["axis"]},
    "Softmax": lambda operation: {"axis": -1},
    "Transpose": lambda operation: {"perm": operation["perm"]},
}
_SPECIAL: dict[str, Callable[[_Graph, Operation, list[str], str], None]] = {
    "ArgMax": _argmax,
    "Broadcast": _shaped,
    "Conv": _conv,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "OneHot": _one_hot,
    "Reduce": _reduce,
    "Reshape": _shaped,
    "Slice": _slice,
}
