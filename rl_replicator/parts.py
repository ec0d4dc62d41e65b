"""Parts of a checkpoint: TensorFlow objects, and plain state."""

import base64
import collections
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from rl_replicator import errors

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class TrackablePart:
    """Models, optimizers and variables, by name; independent of how many replicas hold them.

    All their variables must exist before a restore: build the model on a first input, and the
    optimizer with `Replicator.build_optimizer`.
    """

    def __init__(self, **trackables: Any):
        self._trackables = trackables

    def save(self, folder: pathlib.Path) -> None:
        self._checkpoint().write(str(folder / "variables"))

    def check(self, folder: pathlib.Path) -> None:
        """Compares names and shapes.

        Raises:
          CheckpointError: names the first variable that does not match.
        """
        import tensorflow as tf

        saved = {
            name.removesuffix(_VALUE): tuple(shape)
            for name, shape in tf.train.list_variables(str(folder / "variables"))
            if name.endswith(_VALUE)
        }
        present = _variables(self._checkpoint())
        for name, shape in present.items():
            if name not in saved:
                raise _mismatch(folder, name, f"shape {shape}", "no such variable")
            if saved[name] != shape:
                raise _mismatch(folder, name, f"shape {shape}", f"{saved[name]}")
        for name, shape in saved.items():
            if name not in present:
                raise _mismatch(folder, name, "no such variable", f"one of shape {shape}")

    def restore(self, folder: pathlib.Path) -> None:
        """Raises `CheckpointError` if anything does not match; see `check`."""
        self.check(folder)
        try:
            self._checkpoint().read(str(folder / "variables")).assert_consumed()
        except (AssertionError, ValueError) as error:
            reason = (str(error).strip().splitlines() or ["mismatch"])[0]
            raise errors.CheckpointError(
                f"the checkpoint in {folder} does not fit: {reason}; use the settings it was "
                "saved with"
            ) from error

    def _checkpoint(self) -> Any:
        import tensorflow as tf

        return tf.train.Checkpoint(**self._trackables)


class JsonPart:
    """State made of JSON types and NumPy arrays, such as counters and random states."""

    def __init__(self, get: Callable[[], Any], set: Callable[[Any], None]):
        """Takes the functions that give and take the state. Tuples come back as lists."""
        self._get = get
        self._set = set

    def save(self, folder: pathlib.Path) -> None:
        text = json.dumps(self._get(), default=_encode)
        (folder / "state.json").write_text(text, encoding="utf-8")

    def restore(self, folder: pathlib.Path) -> None:
        text = (folder / "state.json").read_text(encoding="utf-8")
        self._set(json.loads(text, object_hook=_decode))


def _variables(root: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of all variables below `root`, under the shortest path, as TensorFlow has it."""
    import tensorflow as tf

    view = tf.train.TrackableView(root)
    queue = collections.deque([("", root)])
    seen = {id(root)}
    found = {}
    while queue:
        path, node = queue.popleft()
        if path and isinstance(node, tf.Variable):
            found[path] = tuple(node.shape.as_list())
            continue
        for name, child in view.children(node).items():
            if id(child) not in seen:
                seen.add(id(child))
                escaped = name.replace(".", "..").replace("/", ".S")
                queue.append((f"{path}/{escaped}" if path else escaped, child))
    return found


def _mismatch(folder: pathlib.Path, name: str, here: str, there: str) -> errors.CheckpointError:
    return errors.CheckpointError(
        f"the checkpoint in {folder} does not fit: variable {name!r}: expected {here}, found "
        f"{there}; use the settings it was saved with"
    )


def _encode(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"ndarray": data, "dtype": value.dtype.str, "shape": value.shape}
    raise TypeError(f"expected JSON types or NumPy arrays, got {type(value).__name__}")


def _decode(value: dict[str, Any]) -> Any:
    if value.keys() != {"ndarray", "dtype", "shape"}:
        return value
    data = np.frombuffer(base64.b64decode(value["ndarray"]), np.dtype(value["dtype"]))
    return data.reshape(value["shape"]).copy()
