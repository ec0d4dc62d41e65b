"""Translates a TensorFlow graph into a short program of portable operations.

An operation is a dictionary: "op" is its name, "in" the names of its inputs, "out" the name of its
output; the rest are its attributes. NumPy and ONNX have equivalents of all operations:

    Add Sub Mul Div Min Max Pow Less LessEqual Greater GreaterEqual   two inputs
    Neg Abs Exp Log Sqrt Sin Cos Tanh Sigmoid Elu Softplus Sign Round one input
    MatMul [transpose_a, transpose_b]   Softmax   Select   Cast [dtype]   Concat [axis]
    Reduce [kind: Mean, Sum, Max or Min; axes; keep]   Reshape [shape, the batch is -1]
    Slice [starts, stops, steps: one per axis; a start or stop of None means no bound]
    Transpose [perm: the axes of the input in the order of those of the output]
    Broadcast [shape: 1 keeps the input's size]   OneHot [depth, dtype: adds a last axis]
    ArgMax [dtype: removes the last axis]   Gather [axis: that of the first input; numbers of parts]
    Conv [strides, pads: top, left, bottom, right]   MaxPool [size, strides, pads]

Images are [B, H, W, C], as in TensorFlow. `rl_replicator.exports.standalone` runs the operations.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import convert_to_constants

from rl_replicator.errors import UsageError

Operation = dict[str, Any]


class NotPortableError(UsageError):
    """A graph has an operation, a shape or a dtype that has no portable equivalent."""


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
    """Translates a concrete function with the current values of its variables.

    Args:
      function: a `tf.types.experimental.ConcreteFunction` that has named inputs and returns tensors
        by name.

    Raises:
      NotPortableError: if the function has an operation or a dtype that is not portable, or an
        output without a batch dimension.
    """
    frozen = convert_to_constants.convert_variables_to_constants_v2(function)
    known = {tensor.name: tensor.op.name for tensor in frozen.inputs}
    writer = Writer(known, frozen.outputs)
    outputs = dict(zip(sorted(function.structured_outputs), frozen.outputs, strict=True))
    for name, output in outputs.items():
        if not output.shape.rank or output.shape[0] is not None:
            raise NotPortableError(
                f"expected outputs of shape [B, ...], got {output.shape} for {name!r}; keep the "
                "batch, or export the model with --format savedmodel"
            )
    values = {name: (writer.value(x), *_spec(x)) for name, x in outputs.items()}
    used = {name for operation in writer.operations for name in operation["in"]}
    used.update(value for value, _, _ in values.values())
    return PortableProgram(
        inputs={tensor.op.name: _spec(tensor) for tensor in frozen.inputs},
        outputs=values,
        constants={name: array for name, array in writer.constants.items() if name in used},
        operations=writer.operations,
    )


def _spec(tensor: Any) -> tuple[list[int], str]:
    return tensor.shape.as_list()[1:], tensor.dtype.name


class Writer:
    """Translates the operations of a graph that compute some of its tensors.

    Attributes:
      constants: name -> array.
      operations: see the module's docstring.
    """

    def __init__(self, known: Mapping[str, str], outputs: Sequence[Any]):
        """Translates the operations.

        Args:
          known: name of a tensor of the graph, an input or the handle of a variable -> name of its
            value.
          outputs: the tensors to compute.

        Raises:
          NotPortableError: if one of the operations has no portable equivalent.
        """
        self.constants: dict[str, np.ndarray] = {}
        self.operations: list[Operation] = []
        self._names = dict(known)
        operations = outputs[0].graph.get_operations() if outputs else ()
        fixed = _fixed(operations)
        needed: set[Any] = set()
        waiting = [tensor.op for tensor in outputs]
        while waiting:
            op = waiting.pop()
            if op not in needed:
                needed.add(op)
                waiting.extend(tensor.op for tensor in (() if op in fixed else _inputs(op)))
        folded = [x for op in operations if op in needed & fixed for x in op.outputs]
        if folded:
            with tf.compat.v1.Session(graph=folded[0].graph) as session:
                self.constants.update(
                    zip([x.name for x in folded], session.run(folded), strict=True)
                )
            self._names.update((x.name, x.name) for x in folded)
        kinds = {op.type: op for op in operations if op in needed and not self._is_known(op)}
        if kinds:
            *_, last = kinds.values()
            _check(False, "operations that NumPy and ONNX have", last, ", ".join(kinds))
        for op in operations:
            if op in needed:
                self._add(op)

    def value(self, tensor: Any) -> str:
        """Returns the name of a tensor's value."""
        return self._names[tensor.name]

    def emit(self, name: str, operation: str, inputs: list[str], **attributes: Any) -> str:
        """Appends an operation; returns the name of its output."""
        out = f"{name}/{len(self.operations)}"
        self.operations.append({"op": operation, "in": inputs, "out": out, **attributes})
        return out

    def constant(self, op: Any, name: str, value: Any) -> str:
        """Returns the name of a constant of the dtype of an operation's output."""
        name = f"{op.name}/{name}"
        self.constants[name] = np.asarray(value, op.outputs[0].dtype.as_numpy_dtype)
        return name

    def _is_known(self, op: Any) -> bool:
        return (op.type in _ALIASES or op.type in _TRANSLATORS) or all(
            output.name in self._names or tf.get_static_value(output) is not None
            for output in op.outputs
        )

    def _add(self, op: Any) -> None:
        if all(output.name in self._names for output in op.outputs):
            return
        static = [tf.get_static_value(output) for output in op.outputs]
        for output in op.outputs:
            is_plain = np.dtype(output.dtype.as_numpy_dtype).kind in "biufc"
            _check(is_plain, "dtypes that NumPy has", op, output.dtype.name)
        if all(array is not None for array in static):
            for output, array in zip(op.outputs, static, strict=True):
                self._names[output.name] = output.name
                self.constants[output.name] = np.asarray(array)
            return
        inputs = [self.value(tensor) for tensor in _inputs(op)]
        results = inputs if op.type in _ALIASES else _TRANSLATORS[op.type](self, op, inputs)
        results = [results] if isinstance(results, str) else results
        for output, result in zip(op.outputs, results, strict=False):  # Some are for gradients.
            self._names[output.name] = result


# Operations whose outputs are their inputs.
_ALIASES = frozenset(
    {"Identity", "IdentityN", "PreventGradient", "ReadVariableOp", "Snapshot", "StopGradient"}
)
# Operations whose second input is the shape of the result. The static shape is used instead.
_SHAPED = ("BroadcastTo", "Reshape", "ResizeNearestNeighbor")

Translator = Callable[[Writer, Any, list[str]], str | list[str]]


def _inputs(op: Any) -> Sequence[Any]:
    if op.type == "Conv2DBackpropInput":  # Its first input is the shape of the result.
        return [op.inputs[2], op.inputs[1]]
    return op.inputs[:1] if op.type in _SHAPED else op.inputs


def _fixed(operations: Sequence[Any]) -> set[Any]:
    """Returns the operations that compute constants alone, such as those of `tf.linspace`."""
    found: set[Any] = set()
    for op in operations:
        is_fixed = op.inputs and all(x.op in found or x.op.type == "Const" for x in op.inputs)
        # The empty lists of Keras' recurrent layers are variants, which no session returns.
        has_values = all(x.dtype != tf.variant for x in op.outputs)
        if is_fixed and has_values and not op.op_def.is_stateful:
            found.add(op)
    return found


def _check(is_portable: bool, expected: str, op: Any, got: object = None) -> None:
    if not is_portable:
        found = "" if got is None else f", got {got}"
        raise NotPortableError(
            f"expected {expected}{found} ({op.name}); change the exported function, or "
            "export it with --format savedmodel"
        )


def _check_floating(op: Any) -> None:
    dtype = op.outputs[0].dtype
    _check(dtype.is_floating, f"{op.type} of floats", op, f"that of {dtype.name}")


def _static(op: Any, index: int) -> np.ndarray:
    """Returns a constant input that acts as a parameter of the operation, such as an axis."""
    value = tf.get_static_value(op.inputs[index])
    got = f"one that {op.inputs[index].op.type} computes"
    _check(value is not None, f"{op.type} with constant parameters", op, got)
    return np.asarray(value)


def _same(name: str) -> Translator:
    return lambda writer, op, inputs: writer.emit(op.name, name, inputs)


def _matmul(writer: Writer, op: Any, inputs: list[str]) -> str:
    flags = {name: op.get_attr(name) for name in ("transpose_a", "transpose_b")}
    return writer.emit(op.name, "MatMul", inputs, **flags)


def _rsqrt(writer: Writer, op: Any, inputs: list[str]) -> str:
    root = writer.emit(op.name, "Sqrt", inputs)
    return writer.emit(op.name, "Div", [writer.constant(op, "one", 1), root])


def _expm1(writer: Writer, op: Any, inputs: list[str]) -> str:
    power = writer.emit(op.name, "Exp", inputs)
    return writer.emit(op.name, "Sub", [power, writer.constant(op, "one", 1)])


def _log1p(writer: Writer, op: Any, inputs: list[str]) -> str:
    total = writer.emit(op.name, "Add", [inputs[0], writer.constant(op, "one", 1)])
    return writer.emit(op.name, "Log", [total])


def _square(writer: Writer, op: Any, inputs: list[str]) -> str:
    return writer.emit(op.name, "Mul", [inputs[0], inputs[0]])


def _squared_difference(writer: Writer, op: Any, inputs: list[str]) -> str:
    return _square(writer, op, [writer.emit(op.name, "Sub", inputs)])


def _relu(writer: Writer, op: Any, inputs: list[str]) -> str:
    return writer.emit(op.name, "Max", [inputs[0], writer.constant(op, "zero", 0)])


def _leaky_relu(writer: Writer, op: Any, inputs: list[str]) -> str:
    slope = writer.constant(op, "slope", op.get_attr("alpha"))
    scaled = writer.emit(op.name, "Mul", [inputs[0], slope])
    # Not the larger of the two, which is the wrong one for slopes above 1.
    is_positive = writer.emit(op.name, "Greater", [inputs[0], writer.constant(op, "zero", 0)])
    return writer.emit(op.name, "Select", [is_positive, inputs[0], scaled])


def _reduce(kind: str) -> Translator:
    def write(writer: Writer, op: Any, inputs: list[str]) -> str:
        axes = np.ravel(_static(op, 1)).tolist()
        if not axes:
            return inputs[0]  # In ONNX, no axes would mean all of them.
        given = {"axes": axes, "keep": bool(op.get_attr("keep_dims"))}
        if kind != "Mean":
            return writer.emit(op.name, "Reduce", inputs[:1], kind=kind, **given)
        _check_floating(op)  # It rounds a mean of integers, after a sum that may overflow.
        sizes = [op.inputs[0].shape[axis] for axis in axes]
        if None in sizes:
            return writer.emit(op.name, "Reduce", inputs[:1], kind=kind, **given)
        total = writer.emit(op.name, "Reduce", inputs[:1], kind="Sum", **given)
        share = writer.constant(op, "share", np.divide(1, np.prod(sizes)))
        return writer.emit(op.name, "Mul", [total, share])  # Faster than a mean in NumPy.

    return write


def _cast(writer: Writer, op: Any, inputs: list[str]) -> str:
    return writer.emit(op.name, "Cast", inputs, dtype=op.outputs[0].dtype.name)


def _concat(writer: Writer, op: Any, inputs: list[str]) -> str:
    axis = int(_static(op, -1)) % op.outputs[0].shape.rank
    return writer.emit(op.name, "Concat", inputs[:-1], axis=axis)


def _reshape(writer: Writer, op: Any, inputs: list[str]) -> str:
    return writer.emit(op.name, "Reshape", inputs[:1], shape=_shape(op))


def _shape(op: Any) -> list[int]:
    shape = op.outputs[0].shape
    sizes = shape.as_list() if shape.rank is not None else [None, None]
    _check(sizes.count(None) <= 1, "shapes that are known except for the batch", op, shape)
    return [-1 if size is None else size for size in sizes]


def _broadcast(writer: Writer, op: Any, inputs: list[str]) -> str:
    shape, given = _shape(op), op.inputs[0].shape
    if shape[:1] == [-1] and given.rank == len(shape) and given[0] is None:
        shape[0] = 1  # The input already has the batch dimension.
    _check(-1 not in shape, "broadcasts that keep the batch", op)
    return writer.emit(op.name, "Broadcast", inputs, shape=shape)


def _bias_add(writer: Writer, op: Any, inputs: list[str]) -> str:
    _check(op.get_attr("data_format") == b"NHWC", "biases of the last axis", op)
    return writer.emit(op.name, "Add", inputs)


def _one_hot(writer: Writer, op: Any, inputs: list[str]) -> str:
    depth, on, off = (_static(op, index) for index in (1, 2, 3))
    is_plain = op.get_attr("axis") == -1 and (on.item(), off.item()) == (1, 0)
    _check(is_plain, "plain one-hot codes", op)
    dtype = op.outputs[0].dtype.name
    return writer.emit(op.name, "OneHot", inputs[:1], depth=int(depth), dtype=dtype)


def _argmax(writer: Writer, op: Any, inputs: list[str]) -> str:
    is_last = int(_static(op, 1)) in (-1, op.inputs[0].shape.rank - 1)
    _check(is_last, f"{op.type} of the last axis", op)
    return writer.emit(op.name, "ArgMax", inputs[:1], dtype=op.outputs[0].dtype.name)


def _argmin(writer: Writer, op: Any, inputs: list[str]) -> str:
    is_floating = op.inputs[0].dtype.is_floating
    _check(is_floating, "ArgMin of floats", op, f"that of {op.inputs[0].dtype.name}")
    return _argmax(writer, op, [writer.emit(op.name, "Neg", inputs[:1])])


def _gather(writer: Writer, op: Any, inputs: list[str]) -> str:
    _check(not op.get_attr("batch_dims"), "gathers without batch_dims", op)
    axis = int(_static(op, 2)) % op.inputs[0].shape.rank
    return writer.emit(op.name, "Gather", inputs[:2], axis=axis)


def _batch_norm(writer: Writer, op: Any, inputs: list[str]) -> str:
    by_stored = "batch normalization by stored statistics (Sonnet: test_local_stats=False)"
    _check(not op.get_attr("is_training"), by_stored, op)
    _check_images(op)
    if any(tf.get_static_value(x) is None for x in op.inputs[1:]):  # Sonnet computes them.
        padded = [inputs[4], writer.constant(op, "epsilon", op.get_attr("epsilon"))]
        root = writer.emit(op.name, "Sqrt", [writer.emit(op.name, "Add", padded)])
        ratio = writer.emit(op.name, "Div", [inputs[1], root])
        centred = writer.emit(op.name, "Sub", [inputs[0], inputs[3]])
        return writer.emit(
            op.name, "Add", [writer.emit(op.name, "Mul", [centred, ratio]), inputs[2]]
        )
    scale, offset, mean, variance = (_static(op, index) for index in (1, 2, 3, 4))
    # Constants are folded in float64, so that only the two remaining operations round.
    slope = scale.astype(np.float64) / np.sqrt(variance + np.float64(op.get_attr("epsilon")))
    scaled = writer.emit(op.name, "Mul", [inputs[0], writer.constant(op, "slope", slope)])
    return writer.emit(op.name, "Add", [scaled, writer.constant(op, "rest", offset - slope * mean)])


def _transpose(writer: Writer, op: Any, inputs: list[str]) -> str:
    return writer.emit(op.name, "Transpose", inputs[:1], perm=_static(op, 1).tolist())


def _enlarge(writer: Writer, op: Any, inputs: list[str]) -> str:
    """Repeats the rows and columns of images."""
    (_, rows, columns, channels), shape = op.inputs[0].shape, op.outputs[0].shape
    sizes = (rows, columns, channels, *shape[1:3])
    got = f"a resize from {op.inputs[0].shape} to {shape}"
    is_good = None not in sizes and not (shape[1] % rows or shape[2] % columns)
    _check(is_good and not op.get_attr("align_corners"), "repeats", op, got)
    x = writer.emit(op.name, "Reshape", inputs[:1], shape=[-1, rows, 1, columns, 1, channels])
    wide = [1, rows, shape[1] // rows, columns, shape[2] // columns, channels]
    x = writer.emit(op.name, "Broadcast", [x], shape=wide)
    return writer.emit(op.name, "Reshape", [x], shape=[-1, *shape[1:]])


def _slice(writer: Writer, op: Any, inputs: list[str]) -> str:
    begin, end, strides = (_static(op, index).tolist() for index in (1, 2, 3))
    masks = {
        name: op.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    rank = op.inputs[0].shape.rank
    axes: list[tuple[int | None, int | None, int]] = []  # Start, stop, step.
    whole = (None, None, 1)
    for index, (first, last, stride) in enumerate(zip(begin, end, strides, strict=True)):
        is_set = {name: bool(mask >> index & 1) for name, mask in masks.items()}
        if is_set["ellipsis"]:
            axes += [whole] * (rank - (len(begin) - 1 - masks["new_axis"].bit_count()))
        elif is_set["shrink_axis"]:
            axes.append((first, first + 1 if first != -1 else None, 1))
        elif not is_set["new_axis"]:
            start, stop = (None if is_set["begin"] else first), (None if is_set["end"] else last)
            axes.append((start, stop, stride))
    axes += [whole] * (rank - len(axes))
    part = _part(writer, op, inputs[0], axes)
    if masks["shrink_axis"] or masks["new_axis"]:
        return writer.emit(op.name, "Reshape", [part], shape=_shape(op))
    return part


def _part(writer: Writer, op: Any, x: str, axes: Sequence[tuple[Any, Any, int]]) -> str:
    starts, stops, steps = map(list, zip(*axes, strict=True))
    return writer.emit(op.name, "Slice", [x], starts=starts, stops=stops, steps=steps)


def _split(axis_index: int, x_index: int) -> Translator:
    def write(writer: Writer, op: Any, inputs: list[str]) -> list[str]:
        rank = op.inputs[x_index].shape.rank
        axis, first, found = int(_static(op, axis_index)) % rank, 0, []
        for output in op.outputs:
            size = output.shape[axis]
            _check(size is not None, "splits of a known size", op)
            axes: list[tuple[Any, Any, int]] = [(None, None, 1)] * rank
            axes[axis] = (first, first + size, 1)
            found.append(_part(writer, op, inputs[x_index], axes))
            first += size
        return found

    return write


def _check_images(op: Any) -> None:
    _check(op.get_attr("data_format") == b"NHWC", "images [B, H, W, C]", op)


def _pads(op: Any, shape: Any, size: list[int], strides: list[int]) -> list[int]:
    """Returns the rows and columns of padding of images: top, left, bottom, right."""
    _check_images(op)
    padding = op.get_attr("padding")
    if padding == b"VALID":
        return [0, 0, 0, 0]
    if padding == b"EXPLICIT":  # Batch and channels are never padded.
        _, _, top, bottom, left, right, _, _ = op.get_attr("explicit_paddings")
        return [top, left, bottom, right]
    lengths = shape.as_list()[1:3]
    _check(None not in lengths, "images of a known size where padding is SAME", op, shape)
    total = [
        max((-(-length // stride) - 1) * stride + kernel - length, 0)
        for length, kernel, stride in zip(lengths, size, strides, strict=True)
    ]
    before = [pad // 2 for pad in total]
    return [*before, *(pad - first for pad, first in zip(total, before, strict=True))]


def _conv(writer: Writer, op: Any, inputs: list[str]) -> str:
    strides, pads = _geometry(op, op.inputs[0].shape)
    return writer.emit(op.name, "Conv", inputs, strides=[*strides], pads=pads)


def _geometry(op: Any, images: Any) -> tuple[list[int], list[int]]:
    """Returns the strides and the padding of a convolution of images of a shape."""
    strides, dilations = op.get_attr("strides")[1:3], [*op.get_attr("dilations")]
    got = f"dilations of {', '.join(map(str, dilations))}"
    _check(dilations == [1, 1, 1, 1], "plain convolutions", op, got)
    filters = op.inputs[1].shape
    _check(images[-1] == filters[2], "convolutions of one group", op)
    return strides, _pads(op, images, filters.as_list()[:2], strides)


def _transposed_conv(writer: Writer, op: Any, inputs: list[str]) -> str:
    """Convolves images between whose pixels are zeros, with turned filters."""
    (_, rows, columns, channels), shape = op.inputs[2].shape, op.outputs[0].shape
    is_known = None not in (rows, columns, *shape[1:])
    _check(is_known, "transposed convolutions of images of a known size", op, shape)
    (down, across), pads = _geometry(op, shape)
    x = writer.emit(op.name, "Reshape", inputs[:1], shape=[-1, rows, 1, columns, 1, channels])
    is_pixel = writer.constant(op, "is_pixel", np.zeros([1, 1, down, 1, across, 1]))
    writer.constants[is_pixel][:, :, 0, :, 0] = 1
    x = writer.emit(op.name, "Mul", [x, is_pixel])
    x = writer.emit(op.name, "Reshape", [x], shape=[-1, rows * down, columns * across, channels])
    whole, ends = (None, None, 1), [(rows - 1) * down + 1, (columns - 1) * across + 1]
    x = _part(writer, op, x, [whole, *((None, end, 1) for end in ends), whole])
    turned = _part(writer, op, inputs[1], [(None, None, -1), (None, None, -1), whole, whole])
    filters = writer.emit(op.name, "Transpose", [turned], perm=[0, 1, 3, 2])
    sizes = op.inputs[1].shape.as_list()[:2]
    before = [size - 1 - pad for size, pad in zip(sizes, pads[:2], strict=True)]
    lengths = zip(shape[1:3], sizes, ends, before, strict=True)
    after = [length + size - 1 - end - pad for length, size, end, pad in lengths]
    pads = [*before, *after]
    _check(min(pads) >= 0, "transposed convolutions of less padding than the filter", op)
    return writer.emit(op.name, "Conv", [x, filters], strides=[1, 1], pads=pads)


def _max_pool(writer: Writer, op: Any, inputs: list[str]) -> str:
    _check_floating(op)  # The padding is minus infinity.
    size, strides = op.get_attr("ksize"), op.get_attr("strides")
    is_spatial = {size[0], size[3], strides[0], strides[3]} == {1}
    got = f"a size of {', '.join(map(str, size))}"
    _check(is_spatial, "pools of rows and columns", op, got)
    size, strides = size[1:3], strides[1:3]
    pads = _pads(op, op.inputs[0].shape, size, strides)
    return writer.emit(op.name, "MaxPool", inputs, size=[*size], strides=[*strides], pads=pads)


_TRANSLATORS: Mapping[str, Translator] = {
    **{
        name: _same(name)
        for name in (
            *("Add", "Sub", "Mul", "Pow", "Less", "LessEqual", "Greater", "GreaterEqual"),
            *("Neg", "Abs", "Exp", "Log", "Sqrt", "Sin", "Cos", "Tanh"),
            *("Sigmoid", "Elu", "Softplus", "Sign", "Round", "Softmax"),
        )
    },
    "AddV2": _same("Add"),
    "ArgMax": _argmax,
    "ArgMin": _argmin,
    "BiasAdd": _bias_add,
    "BroadcastTo": _broadcast,
    "Cast": _cast,
    "ConcatV2": _concat,
    "Conv2D": _conv,
    "Conv2DBackpropInput": _transposed_conv,
    "ExpandDims": _reshape,
    "Expm1": _expm1,
    "FusedBatchNormV2": _batch_norm,  # Of Sonnet.
    "FusedBatchNormV3": _batch_norm,
    "GatherV2": _gather,
    "LeakyRelu": _leaky_relu,
    "Log1p": _log1p,
    "MatMul": _matmul,
    "Max": _reduce("Max"),
    "Maximum": _same("Max"),
    "MaxPool": _max_pool,
    "Mean": _reduce("Mean"),
    "Min": _reduce("Min"),
    "Minimum": _same("Min"),
    "OneHot": _one_hot,
    "RealDiv": _same("Div"),
    "Relu": _relu,
    "Reshape": _reshape,
    "ResizeNearestNeighbor": _enlarge,
    "Rsqrt": _rsqrt,
    "SelectV2": _same("Select"),
    "Split": _split(0, 1),
    "SplitV": _split(2, 0),
    "Square": _square,
    "SquaredDifference": _squared_difference,
    "Squeeze": _reshape,
    "StridedSlice": _slice,
    "Sum": _reduce("Sum"),
    "Transpose": _transpose,
}
