"""Translates a frozen TensorFlow graph into a short program of portable operations.

An operation is a dictionary: "op" is its name, "in" the names of its inputs, "out" the name of its
output; the rest are its attributes. NumPy and ONNX have equivalents of all operations:

    Add Sub Mul Div Min Max Pow Less LessEqual Greater GreaterEqual   two inputs
    Neg Abs Exp Log Sqrt Tanh Sigmoid Relu Elu Softplus Sign Round    one input
    MatMul [transpose_a, transpose_b]   Softmax   Select   Cast [dtype]   Concat [axis]
    Reduce [kind: Mean, Sum, Max or Min; axes; keep]   Reshape [shape, the batch is -1]
    Slice [starts, stops, steps: one per axis; a start or stop of None means no bound]
    Broadcast [shape: 1 keeps the input's size]   OneHot [depth, dtype: adds a last axis]
    Conv [strides, pads: top, left, bottom, right]   MaxPool [size, strides, pads]

Images are [B, H, W, C], as in TensorFlow.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import convert_to_constants

from rl_replicator.errors import UsageError

Operation = dict[str, Any]


@dataclasses.dataclass
class PortableProgram:
    """Operations in the order in which they can be computed.

    Attributes:
      inputs: input -> (shape without the batch, dtype).
      outputs: output -> (name of its value, shape without the batch, dtype).
      constants: name -> array.
      operations: see the module's docstring.
    """

    inputs: dict[str, tuple[list[int], str]]
    outputs: dict[str, tuple[str, list[int], str]]
    constants: dict[str, np.ndarray]
    operations: list[Operation]


def translate(function: Any) -> PortableProgram:
    """Translates a concrete function.

    Args:
      function: a `tf.types.experimental.ConcreteFunction` that has named inputs and returns tensors
        by name.

    Returns:
      The program, with the current values of the variables.

    Raises:
      UsageError: if the function has an operation or a dtype that is not portable, or an output
        without a batch dimension.
    """
    frozen = convert_to_constants.convert_variables_to_constants_v2(function)
    inputs = {tensor.op.name: tensor for tensor in frozen.inputs}
    writer = _Writer()
    needed = _needed(frozen.outputs)
    for op in frozen.graph.get_operations():
        if op in needed:
            writer.add(op)
    outputs = dict(zip(sorted(function.structured_outputs), frozen.outputs, strict=True))
    for name, output in outputs.items():
        _check_batch(name, output)
    values = {name: (writer.value(x), *_spec(x)) for name, x in outputs.items()}
    used = {name for operation in writer.operations for name in operation["in"]}
    used.update(value for value, _, _ in values.values())
    return PortableProgram(
        inputs={name: _spec(tensor) for name, tensor in inputs.items()},
        outputs=values,
        constants={name: array for name, array in writer.constants.items() if name in used},
        operations=writer.operations,
    )


def _needed(outputs: list[Any]) -> set[Any]:
    """Returns the operations that compute the outputs, except those that only compute shapes."""
    needed: set[Any] = set()
    waiting = [tensor.op for tensor in outputs]
    while waiting:
        op = waiting.pop()
        if op not in needed:
            needed.add(op)
            inputs = op.inputs[:1] if op.type in _SHAPED else op.inputs
            waiting.extend(tensor.op for tensor in inputs)
    return needed


def _check_batch(name: str, output: Any) -> None:
    if not output.shape.rank or output.shape[0] is not None:
        raise UsageError(
            f"expected outputs of shape [B, ...], got {output.shape} for {name!r}; keep the batch, "
            "or export the model with --format savedmodel"
        )


def _spec(tensor: Any) -> tuple[list[int], str]:
    return tensor.shape.as_list()[1:], tensor.dtype.name


class _Writer:
    """Translates operations one by one.

    Attributes:
      constants: name -> array.
      operations: operations translated so far.
    """

    def __init__(self) -> None:
        self.constants: dict[str, np.ndarray] = {}
        self.operations: list[Operation] = []
        self._names: dict[str, str] = {}

    def value(self, tensor: Any) -> str:
        """Returns the name of a tensor's value."""
        return self._names[tensor.name]

    def add(self, op: Any) -> None:
        """Translates an operation."""
        static = [tf.get_static_value(output) for output in op.outputs]
        is_static = all(array is not None for array in static)
        if not is_static and op.type not in _KNOWN:
            raise UsageError(
                f"expected a model of portable operations, got {op.type} ({op.name}); export it "
                "with --format savedmodel"
            )
        _check_dtypes(op)
        if is_static:
            for output, array in zip(op.outputs, static, strict=True):
                self._names[output.name] = self._constant(output.name, np.asarray(array))
            return
        if op.type == "Placeholder":
            self._names[op.outputs[0].name] = op.name
            return
        if op.type in _ALIASES:
            for source, output in zip(op.inputs, op.outputs, strict=True):
                self._names[output.name] = self.value(source)
            return
        inputs = op.inputs[:1] if op.type in _SHAPED else op.inputs
        result = _TRANSLATORS[op.type](self, op, [self.value(tensor) for tensor in inputs])
        self._names[op.outputs[0].name] = result

    def emit(self, name: str, operation: str, inputs: list[str], **attributes: Any) -> str:
        """Appends an operation; returns the name of its output."""
        out = f"{name}/{len(self.operations)}"
        self.operations.append({"op": operation, "in": inputs, "out": out, **attributes})
        return out

    def constant(self, op: Any, name: str, value: Any) -> str:
        """Returns the name of a constant of the dtype of an operation's output."""
        dtype = op.outputs[0].dtype.as_numpy_dtype
        return self._constant(f"{op.name}/{name}", np.asarray(value, dtype))

    def scalar(self, op: Any, value: float) -> str:
        """Returns the name of a number of the dtype of an operation's output."""
        return self.constant(op, str(value), value)

    def _constant(self, name: str, array: np.ndarray) -> str:
        self.constants[name] = array
        return name


def _check_dtypes(op: Any) -> None:
    for output in op.outputs:
        if output.dtype == tf.resource:
            continue  # The operation that reads it is refused by its name.
        if np.dtype(output.dtype.as_numpy_dtype).kind not in "biufc":  # Strings, or bfloat16.
            raise UsageError(
                f"expected dtypes that NumPy supports, got {output.dtype.name} ({op.name}); "
                "compute the exported function in float32, or export it with --format savedmodel"
            )


def _check_floating(op: Any) -> None:
    if not op.outputs[0].dtype.is_floating:
        raise UsageError(
            f"expected {op.type} of floats, got that of {op.outputs[0].dtype.name} ({op.name}); "
            "cast before it, or export the model with --format savedmodel"
        )


def _static(op: Any, index: int) -> np.ndarray:
    """Returns a constant input that acts as a parameter of the operation, such as an axis."""
    value = tf.get_static_value(op.inputs[index])
    if value is None:
        raise UsageError(
            f"expected {op.type} with constant parameters, got one that "
            f"{op.inputs[index].op.type} computes ({op.name}); export the model with --format "
            "savedmodel"
        )
    return np.asarray(value)


# Operations whose outputs are their inputs.
_ALIASES = ("Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot")
# Operations whose second input is the shape of the result. The static shape is used instead.
_SHAPED = ("BroadcastTo", "Reshape")

Translator = Callable[[_Writer, Any, list[str]], str]


def _same(name: str) -> Translator:
    return lambda writer, op, inputs: writer.emit(op.name, name, inputs)


def _matmul(writer: _Writer, op: Any, inputs: list[str]) -> str:
    flags = {name: op.get_attr(name) for name in ("transpose_a", "transpose_b")}
    return writer.emit(op.name, "MatMul", inputs, **flags)


def _rsqrt(writer: _Writer, op: Any, inputs: list[str]) -> str:
    root = writer.emit(op.name, "Sqrt", inputs)
    return writer.emit(op.name, "Div", [writer.scalar(op, 1.0), root])


def _square(writer: _Writer, op: Any, inputs: list[str]) -> str:
    return writer.emit(op.name, "Mul", [inputs[0], inputs[0]])


def _squared_difference(writer: _Writer, op: Any, inputs: list[str]) -> str:
    difference = writer.emit(op.name, "Sub", inputs)
    return writer.emit(op.name, "Mul", [difference, difference])


def _leaky_relu(writer: _Writer, op: Any, inputs: list[str]) -> str:
    slope = writer.scalar(op, op.get_attr("alpha"))
    scaled = writer.emit(op.name, "Mul", [inputs[0], slope])
    # Not the larger of the two, which is the wrong one for slopes above 1.
    is_positive = writer.emit(op.name, "Greater", [inputs[0], writer.scalar(op, 0.0)])
    return writer.emit(op.name, "Select", [is_positive, inputs[0], scaled])


def _reduce(kind: str) -> Translator:
    def write(writer: _Writer, op: Any, inputs: list[str]) -> str:
        axes = np.ravel(_static(op, 1)).tolist()
        if not axes:
            return inputs[0]  # In ONNX, no axes would mean all of them.
        if kind == "Mean":  # TensorFlow rounds a mean of integers, after a sum that may overflow.
            _check_floating(op)
        keep = bool(op.get_attr("keep_dims"))
        return writer.emit(op.name, "Reduce", inputs[:1], kind=kind, axes=axes, keep=keep)

    return write


def _cast(writer: _Writer, op: Any, inputs: list[str]) -> str:
    return writer.emit(op.name, "Cast", inputs, dtype=op.outputs[0].dtype.name)


def _concat(writer: _Writer, op: Any, inputs: list[str]) -> str:
    axis = int(_static(op, -1)) % op.outputs[0].shape.rank
    return writer.emit(op.name, "Concat", inputs[:-1], axis=axis)


def _reshape(writer: _Writer, op: Any, inputs: list[str]) -> str:
    return writer.emit(op.name, "Reshape", inputs[:1], shape=_shape(op.outputs[0]))


def _shape(tensor: Any) -> list[int]:
    sizes = tensor.shape.as_list() if tensor.shape.rank is not None else [None, None]
    if sizes.count(None) > 1:
        raise UsageError(
            f"expected shapes that are known except for the batch, got {tensor.shape} "
            f"({tensor.name}); export it with --format savedmodel"
        )
    return [-1 if size is None else size for size in sizes]


def _broadcast(writer: _Writer, op: Any, inputs: list[str]) -> str:
    shape, given = _shape(op.outputs[0]), op.inputs[0].shape
    if shape[0] == -1 and given.rank == len(shape) and given[0] is None:
        shape[0] = 1  # The input already has the batch dimension.
    if -1 in shape:
        raise UsageError(
            f"expected broadcasts that keep the batch ({op.name}); export it with --format "
            "savedmodel"
        )
    return writer.emit(op.name, "Broadcast", inputs, shape=shape)


def _bias_add(writer: _Writer, op: Any, inputs: list[str]) -> str:
    if op.get_attr("data_format") != b"NHWC":
        raise UsageError(
            f"expected biases of the last axis ({op.name}); export the model with --format "
            "savedmodel"
        )
    return writer.emit(op.name, "Add", inputs)


def _one_hot(writer: _Writer, op: Any, inputs: list[str]) -> str:
    depth, on, off = (_static(op, index) for index in (1, 2, 3))
    if op.get_attr("axis") != -1 or (on.item(), off.item()) != (1, 0):
        raise UsageError("expected plain one-hot codes; export the model with --format savedmodel")
    dtype = op.outputs[0].dtype.name
    return writer.emit(op.name, "OneHot", inputs[:1], depth=int(depth), dtype=dtype)


def _batch_norm(writer: _Writer, op: Any, inputs: list[str]) -> str:
    if op.get_attr("is_training") or op.get_attr("data_format") != b"NHWC":
        raise UsageError(
            "expected batch normalization by stored statistics, and images [B, H, W, C]; export "
            "the model with --format savedmodel"
        )
    scale, offset, mean, variance = (_static(op, index) for index in (1, 2, 3, 4))
    # Constants are folded in float64, so that only the two remaining operations round.
    slope = scale.astype(np.float64) / np.sqrt(variance + np.float64(op.get_attr("epsilon")))
    scaled = writer.emit(op.name, "Mul", [inputs[0], writer.constant(op, "slope", slope)])
    return writer.emit(op.name, "Add", [scaled, writer.constant(op, "rest", offset - slope * mean)])


def _slice(writer: _Writer, op: Any, inputs: list[str]) -> str:
    begin, end, strides = (_static(op, index).tolist() for index in (1, 2, 3))
    masks = {
        name: op.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    rank = op.inputs[0].shape.rank
    starts: list[int | None] = []
    stops: list[int | None] = []
    steps: list[int] = []
    for index, (first, last, stride) in enumerate(zip(begin, end, strides, strict=True)):
        is_set = {name: bool(mask >> index & 1) for name, mask in masks.items()}
        if is_set["ellipsis"]:
            count = rank - (len(begin) - 1 - bin(masks["new_axis"]).count("1"))
            starts, stops, steps = (
                starts + [None] * count,
                stops + [None] * count,
                steps + [1] * count,
            )
        elif is_set["shrink_axis"]:
            starts.append(first)
            stops.append(first + 1 if first != -1 else None)
            steps.append(1)
        elif not is_set["new_axis"]:
            starts.append(None if is_set["begin"] else first)
            stops.append(None if is_set["end"] else last)
            steps.append(stride)
    rest = rank - len(starts)
    starts, stops, steps = starts + [None] * rest, stops + [None] * rest, steps + [1] * rest
    part = writer.emit(op.name, "Slice", inputs[:1], starts=starts, stops=stops, steps=steps)
    if masks["shrink_axis"] or masks["new_axis"]:
        return writer.emit(op.name, "Reshape", [part], shape=_shape(op.outputs[0]))
    return part


def _pads(op: Any, size: list[int], strides: list[int]) -> list[int]:
    """Returns the rows and columns of padding: top, left, bottom, right."""
    if op.get_attr("data_format") != b"NHWC":
        raise UsageError("expected images [B, H, W, C]; export the model with --format savedmodel")
    padding = op.get_attr("padding")
    if padding == b"VALID":
        return [0, 0, 0, 0]
    if padding == b"EXPLICIT":  # Batch and channels are never padded.
        _, _, top, bottom, left, right, _, _ = op.get_attr("explicit_paddings")
        return [top, left, bottom, right]
    total = []
    lengths = op.inputs[0].shape.as_list()[1:3]
    if None in lengths:
        raise UsageError(
            f"expected images of a known size where padding is SAME, got {op.inputs[0].shape} "
            f"({op.name}); export the model with --format savedmodel"
        )
    for length, kernel, stride in zip(lengths, size, strides, strict=True):
        total.append(max((-(-length // stride) - 1) * stride + kernel - length, 0))
    before = [pad // 2 for pad in total]
    return [*before, *(pad - first for pad, first in zip(total, before, strict=True))]


def _conv(writer: _Writer, op: Any, inputs: list[str]) -> str:
    strides, dilations = op.get_attr("strides")[1:3], [*op.get_attr("dilations")]
    if dilations != [1, 1, 1, 1]:
        raise UsageError(
            f"expected plain convolutions, got dilations of {', '.join(map(str, dilations))} "
            f"({op.name}); export the model with --format savedmodel"
        )
    if op.inputs[0].shape[-1] != op.inputs[1].shape[2]:
        raise UsageError(
            f"expected convolutions of one group ({op.name}); export the model with --format "
            "savedmodel"
        )
    pads = _pads(op, op.inputs[1].shape.as_list()[:2], strides)
    return writer.emit(op.name, "Conv", inputs, strides=[*strides], pads=pads)


def _max_pool(writer: _Writer, op: Any, inputs: list[str]) -> str:
    _check_floating(op)  # The padding is minus infinity.
    size, strides = op.get_attr("ksize"), op.get_attr("strides")
    if {size[0], size[3], strides[0], strides[3]} != {1}:
        raise UsageError(
            f"expected pools of rows and columns, got a size of {', '.join(map(str, size))} "
            f"({op.name}); export the model with --format savedmodel"
        )
    size, strides = size[1:3], strides[1:3]
    pads = _pads(op, size, strides)
    return writer.emit(op.name, "MaxPool", inputs, size=[*size], strides=[*strides], pads=pads)


_TRANSLATORS: Mapping[str, Translator] = {
    **{
        name: _same(name)
        for name in (
            *("Sub", "Mul", "Pow", "Less", "LessEqual", "Greater", "GreaterEqual"),
            *("Neg", "Abs", "Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Relu", "Elu", "Softplus"),
            *("Sign", "Round", "Softmax"),
        )
    },
    "Add": _same("Add"),
    "AddV2": _same("Add"),
    "BiasAdd": _bias_add,
    "BroadcastTo": _broadcast,
    "RealDiv": _same("Div"),
    "Minimum": _same("Min"),
    "Maximum": _same("Max"),
    "SelectV2": _same("Select"),
    "Cast": _cast,
    "ConcatV2": _concat,
    "Conv2D": _conv,
    "ExpandDims": _reshape,
    "FusedBatchNormV3": _batch_norm,
    "LeakyRelu": _leaky_relu,
    "MatMul": _matmul,
    "Max": _reduce("Max"),
    "MaxPool": _max_pool,
    "Mean": _reduce("Mean"),
    "Min": _reduce("Min"),
    "OneHot": _one_hot,
    "Reshape": _reshape,
    "Rsqrt": _rsqrt,
    "Square": _square,
    "SquaredDifference": _squared_difference,
    "Squeeze": _reshape,
    "StridedSlice": _slice,
    "Sum": _reduce("Sum"),
}
_KNOWN = {"Placeholder", *_ALIASES, *_TRANSLATORS}
