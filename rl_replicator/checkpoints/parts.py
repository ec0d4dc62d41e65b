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
_FILE = "variables"
_STATE = "state.json"


class TrackablePart:
    """Models, optimizers and variables, by name; independent of how many replicas hold them.

    The variables are found as `tf.train.Checkpoint(**trackables)` finds them and are written under
    the names that it gives them, as plain values. So what was saved by one kind of replicator is
    restored by any other; and on several processes the chief may save alone, while all restore.

    All variables must exist before a restore: build the model on a first input, and the optimizer
    with `Replicator.build_optimizer`.
    """

    def __init__(self, **trackables: Any):
        self._trackables = trackables

    def save(self, folder: pathlib.Path) -> None:
        """Raises `CheckpointError` if something holds state that is not a variable."""
        import tensorflow as tf

        from rl_replicator.checkpoints import values

        present = self._variables()
        with tf.device("/cpu:0"):
            tf.raw_ops.SaveV2(
                prefix=str(folder / _FILE),
                tensor_names=[name + _VALUE for name in present],
                shape_and_slices=[""] * len(present),
                tensors=[tf.constant(values.read(*item)) for item in present.items()],
            )

    def export_tf(self, prefix: str | pathlib.Path) -> str:
        """Writes the variables as a checkpoint with an object graph, for TensorFlow's own tools.

        Another program restores it without this package:

            tf.train.Checkpoint(model=model).read(path).expect_partial()

        Replicated variables are written as one value, whatever the number of replicas.

        Args:
          prefix: path of the checkpoint's files, without their suffixes.

        Returns:
          The path to pass to `tf.train.Checkpoint.read`.

        Raises:
          CheckpointError: something holds state that is not a variable.
        """
        import tensorflow as tf

        self._variables()
        return tf.train.Checkpoint(**self._trackables).write(str(prefix))

    def check(self, folder: pathlib.Path) -> None:
        """Compares names, shapes and types.

        Raises:
          CheckpointError: names the first variable that does not match.
        """
        for name, there in sorted(self._check_present(folder).items()):
            raise _mismatch(folder, name, "no such variable", there)

    def _check_present(self, folder: pathlib.Path) -> dict[str, str]:
        """Checks that every variable here is saved there, in the same shape and dtype.

        Returns:
          The saved variables that are not here, by name, with their descriptions.
        """
        import tensorflow as tf

        reader = tf.train.load_checkpoint(str(folder / _FILE))
        dtypes = reader.get_variable_to_dtype_map()
        saved = {
            name.removesuffix(_VALUE): _describe(dtypes[name], shape)
            for name, shape in reader.get_variable_to_shape_map().items()
            if name.endswith(_VALUE)
        }
        present = self._variables()
        for name, variable in present.items():
            here = _describe(variable.dtype, variable.shape)
            if saved.get(name) != here:
                raise _mismatch(folder, name, here, saved.get(name, "no such variable"))
        return {name: there for name, there in saved.items() if name not in present}

    def restore(self, folder: pathlib.Path) -> None:
        """Raises `CheckpointError` if anything does not match; see `check`."""
        import tensorflow as tf

        from rl_replicator.checkpoints import values

        self.check(folder)
        reader = tf.train.load_checkpoint(str(folder / _FILE))
        for name, variable in self._variables().items():
            values.write(name, variable, reader.get_tensor(name + _VALUE))

    def first_not_finite(self) -> str | None:
        """The name of the first variable that holds NaN or infinity, or None."""
        from rl_replicator.checkpoints import values

        for name, variable in self._variables().items():
            if variable.dtype.is_floating:
                value = values.read(name, variable)
                if not np.isfinite(value.astype(np.float32, copy=False)).all():
                    return name
        return None

    def _variables(self) -> dict[str, Any]:
        """All variables, under their shortest paths, as TensorFlow has it."""
        import tensorflow as tf

        root = tf.train.Checkpoint(**self._trackables)
        view = tf.train.TrackableView(root)
        queue = collections.deque([("", root)])
        seen = {id(root)}
        found = {}
        while queue:
            path, node = queue.popleft()
            if path and isinstance(node, tf.Variable):
                found[path] = node
                continue
            _check_has_no_other_state(path, node)
            for name, child in view.children(node).items():
                if id(child) not in seen:
                    seen.add(id(child))
                    escaped = name.replace(".", "..").replace("/", ".S")
                    queue.append((f"{path}/{escaped}" if path else escaped, child))
        return found


class TrackableSubset(TrackablePart):
    """Some of the objects of a saved `TrackablePart`, restored alone; it cannot be saved.

    For example the network of a training run, without its optimizer:

        checkpointer.restore({"learner": TrackableSubset(network=network)})
    """

    def save(self, folder: pathlib.Path) -> None:
        """Raises `CheckpointError`: a part that is missing something must not replace a whole."""
        raise errors.CheckpointError(
            "expected a TrackablePart of all objects to save, got a TrackableSubset; "
            "use it for restoring only"
        )

    def check(self, folder: pathlib.Path) -> None:
        """Compares names, shapes and types of the variables that are here.

        Raises:
          CheckpointError: names the first variable that is not saved, or saved differently.
        """
        self._check_present(folder)


class InputPart:
    """How far an input has been used, in steps: valid for any number of replicas.

    Restored before the first step, with the same `input_fn` and global batch the data goes on
    behind the last step of the checkpoint. The data up to there is read and dropped, so `input_fn`
    must give the same data in the same order again (a shuffle needs a seed).
    """

    def __init__(self, inputs: Any):
        """Takes what `Replicator.make_inputs` returned."""
        self._inputs = inputs

    def save(self, folder: pathlib.Path) -> None:
        (folder / _STATE).write_text(json.dumps({"position": self._inputs.position}))

    def restore(self, folder: pathlib.Path) -> None:
        """Raises `ConfigError` if a step has been taken from the input."""
        self._inputs.go_to(json.loads((folder / _STATE).read_text())["position"])


class JsonPart:
    """State made of JSON types and NumPy arrays, such as counters and random states."""

    def __init__(self, get: Callable[[], Any], set: Callable[[Any], None]):
        """Takes the functions that give and take the state. Tuples come back as lists."""
        self._get = get
        self._set = set

    def save(self, folder: pathlib.Path) -> None:
        text = json.dumps(self._get(), default=_encode)
        (folder / _STATE).write_text(text, encoding="utf-8")

    def restore(self, folder: pathlib.Path) -> None:
        text = (folder / _STATE).read_text(encoding="utf-8")
        self._set(json.loads(text, object_hook=_decode))


def _describe(dtype: Any, shape: Any) -> str:
    import tensorflow as tf

    return f"{tf.as_dtype(dtype).base_dtype.name} {list(shape)}"


def _check_has_no_other_state(path: str, node: Any) -> None:
    """Refuses lookup tables, dataset iterators and the like: silence would lose their state."""
    from tensorflow.python.trackable import base

    # TensorFlow has no public question for "does this object save anything by itself?".
    hooks = ("_serialize_to_tensors", "_gather_saveables_for_checkpoint")
    for hook in hooks:
        own = getattr(type(node), hook, None)
        if own is not None and own is not getattr(base.Trackable, hook):
            raise errors.CheckpointError(
                f"expected a checkpoint of variables only, found a {type(node).__name__} at "
                f"{path!r}; keep it out of TrackablePart and save it as a part of its own"
            )


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
