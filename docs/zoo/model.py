"""A trained model in plain NumPy. It needs only this file and `model.npz` beside it.

    from model import Model

    model = Model("model.npz")
    model.reset()                          # at the start of every episode
    action = model.act(observation)        # one observation of the environment
    outputs = model.run(observation=...)   # a batch: outputs by name

`model.card` describes the model, `model.inputs` its inputs. Run this file to print both.
"""

import json
import sys
from typing import Any

import numpy as np


class Model:
    """A model that was exported by RL-Replicator."""

    def __init__(self, path: Any = "model.npz"):
        """Loads the model.

        Args:
          path: the .npz file.
        """
        with np.load(path) as file:
            arrays = dict(file)
        program = json.loads(str(arrays.pop("program")))
        self.card = json.loads(str(arrays.pop("card")))
        self.inputs = program["inputs"]
        self.outputs = program["outputs"]
        self._operations = [unpacked(operation) for operation in program["operations"]]
        self._constants = {name: arrays[key] for name, key in program["constants"].items()}
        self._kept: Any = {}  # What the next call needs, by name.

    def reset(self) -> None:
        """Starts an episode."""
        self._kept = {}

    def act(self, observation: Any) -> Any:
        """Returns the action of a policy, in the range of its environment.

        Args:
          observation: an observation of the environment, without a batch dimension: an array of the
            shape in `inputs["observation"]`, or `{"pixels": ..., "vector": ...}` if there is an
            input `vector`. This method stacks the frames, and keeps the state.
        """
        if "observation" not in self.inputs or "action" not in self.outputs:
            arguments = ", ".join(f"{name}=..." for name in self.inputs)
            raise ValueError(
                f"expected a policy, got a model of {list(self.inputs)}; call run({arguments})"
            )
        inputs = {}
        if "vector" in self.inputs:
            inputs["vector"] = np.asarray(observation["vector"])[None]
            observation = observation["pixels"]
        if hasattr(observation, "values"):
            raise TypeError(
                f"expected one array {self.inputs['observation'][0]}, got arrays by name; pass "
                f"what the card describes: {self.card.get('observation')}"
            )
        inputs["observation"] = np.asarray(observation)[None]
        if "stack" in self.inputs:
            times = self.inputs["stack"][0][-1] // self.inputs["observation"][0][-1]
            inputs["stack"] = np.concatenate([inputs["observation"]] * times, axis=-1)
        if "state" in self.inputs:
            inputs["state"] = np.zeros([1, *self.inputs["state"][0]], np.float32)
        outputs = self.run(**{**inputs, **self._kept})
        prefix = "next_"
        self._kept = {k.removeprefix(prefix): v for k, v in outputs.items() if prefix in k}
        return outputs["action"][0]

    def run(self, **inputs: Any) -> dict[str, Any]:
        """Computes the outputs, by name, for a batch.

        Args:
          **inputs: arrays [B, ...] by name, see `inputs`. Integer inputs, such as frames, accept
            only integers within their range.
        """
        if set(inputs) != set(self.inputs):
            raise ValueError(f"expected the inputs {list(self.inputs)}, got {list(inputs)}")
        values = dict(self._constants)
        for name, (shape, dtype) in self.inputs.items():
            value = np.asarray(inputs[name])
            given = list(value.shape[1:])
            known = [size if size is not None else g for size, g in zip(shape, given, strict=False)]
            if len(given) != len(shape) or given != known:
                expected = ", ".join(map(str, ("B", *shape)))
                raise ValueError(f"expected {name} of shape [{expected}], got {list(value.shape)}")
            values[name] = _cast(name, value, np.dtype(dtype))
        with np.errstate(all="ignore"):
            for function, names, out in self._operations:
                values[out] = function(*(values[name] for name in names), None)
        return {name: values[value] for name, (value, _, _) in self.outputs.items()}


def unpacked(operation: dict[str, Any]) -> tuple[Any, list[str], str]:
    """Returns the function of an operation, and the names of its inputs and of its output."""
    attributes = dict(operation)
    function, names = OPERATIONS[attributes.pop("op")], attributes.pop("in")
    out = attributes.pop("out")
    return (function(**attributes) if attributes else function), names, out


def _cast(name: str, value: Any, dtype: Any) -> Any:
    """Returns an input in the model's dtype; floats are not converted to integers."""
    if dtype.kind in "iu" and value.dtype != dtype and value.size:
        limits, got = np.iinfo(dtype), ""
        if value.dtype.kind not in "biu":  # Float frames, from 0 to 1, would turn black.
            got = str(value.dtype)
        elif value.min() < limits.min or value.max() > limits.max:
            got = f"{value.dtype} from {value.min()} to {value.max()}"
        if got:
            expected = f"{dtype} from {limits.min} to {limits.max}"
            raise ValueError(f"expected {name} of {expected}, got {got}; scale and convert it")
    return value.astype(dtype, copy=False)


# An operation is a function of arrays and of the array to write the result to. Without that array
# (None), it makes a new one or, where only the shape changes, returns a view. Operations that have
# attributes are made from them.
def _into(out: Any, result: Any) -> Any:
    if out is None:
        return result
    np.copyto(out, result, casting="unsafe")
    return out


def _matmul(transpose_a: bool, transpose_b: bool) -> Any:
    if not transpose_a and not transpose_b:
        return np.matmul
    return lambda a, b, out: np.matmul(a.T if transpose_a else a, b.T if transpose_b else b, out)


def _reduce(kind: str, axes: Any, keep: bool) -> Any:
    axes = tuple(axes)
    reductions: dict[str, Any] = {
        "Max": np.maximum.reduce,
        "Mean": np.mean,
        "Min": np.minimum.reduce,
        "Sum": np.add.reduce,
    }
    reduce = reductions[kind]
    # In the dtype of x: NumPy would sum small integers in wider types.
    return lambda x, out: reduce(x, axes, x.dtype, out, keep)


def _slice(starts: Any, stops: Any, steps: Any) -> Any:
    return lambda x, out: x[tuple(map(slice, starts, stops, steps))]


def _softmax(x: Any, out: Any) -> Any:
    out = np.subtract(x, np.maximum.reduce(x, -1, None, None, True), out)
    out = np.exp(out, out)
    return np.divide(out, np.add.reduce(out, -1, None, None, True), out)


def _elu(x: Any, out: Any) -> Any:
    out = np.asarray(np.minimum(x, x.dtype.type(0), out))
    return np.maximum(x, np.expm1(out, out), out)  # Below zero, expm1(x) is above x.


def _sigmoid(x: Any, out: Any) -> Any:
    half = x.dtype.type(0.5)
    out = np.asarray(np.multiply(x, half, out))
    out = np.multiply(np.tanh(out, out), half, out)  # Unlike exp, tanh does not overflow.
    return np.add(out, half, out)


def _windows(x: Any, size: Any, strides: Any, pads: Any, fill: float) -> Any:
    """Returns the patches to which a convolution or a pool applies: [B, H, W, C, *size]."""
    top, left, bottom, right = pads
    if any(pads):
        x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)
    down, across = strides
    windows = np.lib.stride_tricks.sliding_window_view(x, tuple(size), axis=(1, 2))  # type: ignore
    return windows[:, ::down, ::across]


def _conv(strides: Any, pads: Any) -> Any:
    def run(x: Any, filters: Any, out: Any) -> Any:
        patches = _windows(x, filters.shape[:2], strides, pads, 0)
        return _into(out, np.tensordot(patches, filters, ((4, 5, 3), (0, 1, 2))))

    return run


def _max_pool(size: Any, strides: Any, pads: Any) -> Any:
    return lambda x, out: _into(out, _windows(x, size, strides, pads, -np.inf).max((4, 5)))


def _broadcast(shape: Any) -> Any:
    return lambda x, out: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape)))


def _cast_to(dtype: str) -> Any:
    return lambda x, out: x.astype(dtype) if out is None else _into(out, x)


def _concat(axis: int) -> Any:
    return lambda *parts: np.concatenate(parts[:-1], axis, parts[-1])


def _gather(axis: int) -> Any:
    return lambda x, numbers, out: np.take(x, numbers, axis, out)


def _argmax(dtype: str) -> Any:
    return lambda x, out: _into(out, np.argmax(x, -1).astype(dtype))


def _one_hot(depth: int, dtype: str) -> Any:
    return lambda x, out: _into(out, (x[..., None] == np.arange(depth)).astype(dtype))


def _transpose(perm: Any) -> Any:
    return lambda x, out: _into(out, x.transpose(perm))


def _reshape(shape: Any) -> Any:
    return lambda x, out: _into(out, x.reshape(shape))


OPERATIONS: dict[str, Any] = {
    "Abs": np.abs,
    "Add": np.add,
    "ArgMax": _argmax,
    "Broadcast": _broadcast,
    "Cast": _cast_to,
    "Concat": _concat,
    "Conv": _conv,
    "Cos": np.cos,
    "Div": np.divide,
    "Elu": _elu,
    "Exp": np.exp,
    "Gather": _gather,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Log": np.log,
    "MatMul": _matmul,
    "Max": np.maximum,
    "MaxPool": _max_pool,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "OneHot": _one_hot,
    "Pow": np.power,
    "Reduce": _reduce,
    "Reshape": _reshape,
    "Round": lambda x, out: np.round(x, 0, out),
    "Select": lambda condition, x, y, out: _into(out, np.where(condition, x, y)),
    "Sigmoid": _sigmoid,
    "Sign": np.sign,
    "Sin": np.sin,
    "Slice": _slice,
    "Softmax": _softmax,
    "Softplus": lambda x, out: np.logaddexp(x, x.dtype.type(0), out),
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Tanh": np.tanh,
    "Transpose": _transpose,
}


if __name__ == "__main__":
    model = Model(*sys.argv[1:2])
    print(
        json.dumps({"inputs": model.inputs, "outputs": list(model.outputs), **model.card}, indent=1)
    )
