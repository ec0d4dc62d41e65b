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
        self._operations = program["operations"]
        self._constants = {name: arrays[key] for name, key in program["constants"].items()}
        self._stack: Any = None

    def reset(self) -> None:
        """Starts an episode."""
        self._stack = None

    def act(self, observation: Any) -> Any:
        """Returns the action of a policy, in the range of its environment.

        Args:
          observation: an observation of the environment, without a batch dimension: an array of the
            shape in `inputs["observation"]`. This method stacks the frames.
        """
        if "observation" not in self.inputs or "action" not in self.outputs:
            arguments = ", ".join(f"{name}=..." for name in self.inputs)
            raise ValueError(
                f"expected a policy, got a model of {list(self.inputs)}; call run({arguments})"
            )
        if hasattr(observation, "values"):
            raise TypeError(
                f"expected one array {self.inputs['observation'][0]}, got arrays by name; pass "
                f"what the card describes: {self.card.get('observation')}"
            )
        inputs = {"observation": np.asarray(observation)[None]}
        if "stack" in self.inputs:
            stack = self._stack
            if stack is None:
                times = self.inputs["stack"][0][-1] // self.inputs["observation"][0][-1]
                stack = np.concatenate([inputs["observation"]] * times, axis=-1)
            inputs["stack"] = stack
        outputs = self.run(**inputs)
        self._stack = outputs.get("next_stack")
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
                raise ValueError(f"expected {name} of shape [B, *{shape}], got {list(value.shape)}")
            values[name] = _cast(name, value, np.dtype(dtype))
        with np.errstate(all="ignore"):
            for operation in self._operations:
                arguments = [values[name] for name in operation["in"]]
                values[operation["out"]] = OPERATIONS[operation["op"]](operation, *arguments)
        return {name: values[value] for name, (value, _, _) in self.outputs.items()}


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


def _matmul(attributes: Any, a: Any, b: Any) -> Any:
    a = a.T if attributes["transpose_a"] else a
    return np.matmul(a, b.T if attributes["transpose_b"] else b)


def _reduce(attributes: Any, x: Any) -> Any:
    function = getattr(np, attributes["kind"].lower())
    result = function(x, axis=tuple(attributes["axes"]), keepdims=attributes["keep"])
    return result.astype(x.dtype)  # NumPy sums small integers in wider types.


def _slice(attributes: Any, x: Any) -> Any:
    axes = zip(attributes["starts"], attributes["stops"], attributes["steps"], strict=True)
    return x[tuple(slice(*axis) for axis in axes)]


def _softmax(attributes: Any, x: Any) -> Any:
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def _windows(x: Any, size: Any, attributes: Any, fill: float) -> Any:
    """Returns the patches to which a convolution or a pool applies: [B, H, W, C, *size]."""
    top, left, bottom, right = attributes["pads"]
    if any(attributes["pads"]):
        pads = ((0, 0), (top, bottom), (left, right), (0, 0))
        x = np.pad(x, pads, constant_values=fill)
    down, across = attributes["strides"]
    windows = np.lib.stride_tricks.sliding_window_view(x, tuple(size), axis=(1, 2))  # type: ignore
    return windows[:, ::down, ::across]


def _conv(attributes: Any, x: Any, filters: Any) -> Any:
    patches = _windows(x, filters.shape[:2], attributes, 0)
    return np.tensordot(patches, filters, ((4, 5, 3), (0, 1, 2)))


def _max_pool(attributes: Any, x: Any) -> Any:
    return _windows(x, attributes["size"], attributes, -np.inf).max((4, 5))


def _broadcast(attributes: Any, x: Any) -> Any:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(attributes["shape"])))


def _one_hot(attributes: Any, x: Any) -> Any:
    return (x[..., None] == np.arange(attributes["depth"])).astype(attributes["dtype"])


def _two(function: Any) -> Any:
    return lambda attributes, x, y: function(x, y)


def _one(function: Any) -> Any:
    return lambda attributes, x: function(x)


OPERATIONS: dict[str, Any] = {
    "Abs": _one(np.abs),
    "Add": _two(np.add),
    "Broadcast": _broadcast,
    "Cast": lambda attributes, x: x.astype(attributes["dtype"]),
    "Concat": lambda attributes, *parts: np.concatenate(parts, attributes["axis"]),
    "Conv": _conv,
    "Div": _two(np.divide),
    "Elu": _one(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "Exp": _one(np.exp),
    "Greater": _two(np.greater),
    "GreaterEqual": _two(np.greater_equal),
    "Less": _two(np.less),
    "LessEqual": _two(np.less_equal),
    "Log": _one(np.log),
    "MatMul": _matmul,
    "Max": _two(np.maximum),
    "MaxPool": _max_pool,
    "Min": _two(np.minimum),
    "Mul": _two(np.multiply),
    "Neg": _one(np.negative),
    "OneHot": _one_hot,
    "Pow": _two(np.power),
    "Reduce": _reduce,
    "Relu": _one(lambda x: np.maximum(x, 0)),
    "Reshape": lambda attributes, x: x.reshape(attributes["shape"]),
    "Round": _one(np.round),
    "Select": lambda attributes, condition, x, y: np.where(condition, x, y),
    "Sigmoid": _one(lambda x: 0.5 * np.tanh(0.5 * x) + 0.5),
    "Sign": _one(np.sign),
    "Slice": _slice,
    "Softmax": _softmax,
    "Softplus": _one(lambda x: np.logaddexp(x, 0)),
    "Sqrt": _one(np.sqrt),
    "Sub": _two(np.subtract),
    "Tanh": _one(np.tanh),
}


if __name__ == "__main__":
    model = Model(*sys.argv[1:2])
    print(
        json.dumps({"inputs": model.inputs, "outputs": list(model.outputs), **model.card}, indent=1)
    )
