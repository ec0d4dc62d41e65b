"""Parts of a checkpoint: TensorFlow objects, inputs, and plain state."""

import base64
import collections
import io
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_replicator import errors
from rl_replicator.checkpoints import manifest

if TYPE_CHECKING:
    import tensorflow as tf

_FILE = "variables"
_STATE = "state.json"
_ARRAY = "ndarray"  # The only key of a JSON object that stands for an array.


class TrackablePart:
    """Models, optimizers and variables of any replicator.

    Finds the variables as `tf.train.Checkpoint(**trackables)` does, and writes their plain values
    under their paths. So any replicator can restore what another one saved. With several
    processes, the chief may save alone, and all processes restore.

    All variables must exist before a restore: build the model on a first input, and the optimizer
    with `Replicator.build_optimizer`.
    """

    def __init__(self, **trackables: Any):
        """Stores the objects to save.

        Args:
          **trackables: models, optimizers and variables, by name.
        """
        self._trackables = trackables

    def save(self, folder: pathlib.Path) -> None:
        """Writes the values of all variables.

        Args:
          folder: see `Part.save`.

        Raises:
          CheckpointError: if an object cannot be saved, or holds state that is not a variable.
        """
        self.capture().save(folder)

    def capture(self) -> "VariableValues":
        """Copies the values of all variables.

        Returns:
          The values, to save later.

        Raises:
          CheckpointError: if an object cannot be saved, or holds state that is not a variable.
        """
        from rl_replicator.checkpoints import values

        present = self.variables()
        return VariableValues({name: values.read(name, var) for name, var in present.items()})

    def check_holds(self, variables: "Iterable[tf.Variable]", owner: str) -> None:
        """Checks that the variables that training changes are among those that are saved.

        A variable with SUM aggregation may be missing: it is the state of a metric, to which each
        replica adds its own values, and no checkpoint can hold it.

        Args:
          variables: variables as they were created; see `ReplicatedStep.assigned_variables`.
          owner: the object whose `trackables()` are saved, for the error.

        Raises:
          ConfigError: if a variable is missing; names the first one.
        """
        import tensorflow as tf

        from rl_replicator.graphs import assignments

        saved: set[int] = set()
        for variable in self.variables().values():
            saved |= assignments.handle_ids(variable)
        for variable in variables:
            is_saved = not saved.isdisjoint(assignments.handle_ids(variable))
            if not is_saved and variable.aggregation != tf.VariableAggregation.SUM:
                raise errors.ConfigError(
                    f"expected every variable that the step of {owner} assigns in trackables(), "
                    f"found that {variable.name!r} {tuple(variable.shape)} is missing; add the "
                    "model or optimizer that has it, or a resumed run loses it"
                )

    def check(self, folder: pathlib.Path) -> None:
        """Compares names, shapes and dtypes of the variables with the saved ones.

        Args:
          folder: folder that `save` wrote.

        Raises:
          CheckpointError: if a variable does not match (names the first one), or if the saved
            variables cannot be read.
        """
        present, saved = self._read(folder)
        for name in sorted(saved.keys() - present.keys()):
            there = f"{saved[name].dtype.name} {list(saved[name].shape)}"
            raise _mismatch(folder, name, "no such variable", there)

    def _read(self, folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Reads the saved values, and checks that every variable has one of its shape and dtype.

        Returns:
          The variables, and all saved values, by name.
        """
        saved, present = VariableValues.read(folder), self.variables()
        for name, variable in present.items():
            here = f"{variable.dtype.base_dtype.name} {_shape(variable)}"
            if name not in saved:
                raise _mismatch(folder, name, here, "no such variable")
            value = saved[name]
            if (
                value.dtype != variable.dtype.as_numpy_dtype
                or not variable.shape.is_compatible_with(value.shape)
            ):
                raise _mismatch(folder, name, here, f"{value.dtype.name} {list(value.shape)}")
        return present, saved

    def restore(self, folder: pathlib.Path) -> None:
        """Assigns the saved values to all variables.

        Args:
          folder: folder that `save` wrote.

        Raises:
          CheckpointError: see `check`.
        """
        from rl_replicator.checkpoints import values

        self.check(folder)
        present, saved = self._read(folder)
        for name, variable in present.items():
            values.write(name, variable, saved[name])

    def variables(self) -> dict[str, Any]:
        """Returns all variables by their shortest path, the name that TensorFlow gives them.

        Raises:
          CheckpointError: if an object cannot be saved, or holds state that is not a variable.
        """
        import tensorflow as tf

        for name, node in self._trackables.items():
            try:
                tf.train.Checkpoint(**{name: node})
            except ValueError:  # Its message asks users to open a TensorFlow issue.
                raise errors.CheckpointError(
                    "expected models, optimizers and variables to save, got a "
                    f"{type(node).__name__} for {name!r}; make it a tf.Variable, or leave it out"
                ) from None
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
            for name, child in _children(view, path, node).items():
                if id(child) not in seen:
                    seen.add(id(child))
                    escaped = name.replace(".", "..").replace("/", ".S")
                    queue.append((f"{path}/{escaped}" if path else escaped, child))
        return found


class VariableValues:
    """The values that a `TrackablePart` had when it was captured."""

    def __init__(self, values: Mapping[str, np.ndarray]):
        """Stores the values.

        Args:
          values: arrays by name of the variable.
        """
        self._values = values

    @staticmethod
    def read(folder: pathlib.Path) -> dict[str, np.ndarray]:
        """Returns the values that were saved, by name of the variable.

        Args:
          folder: folder that `save` wrote.

        Raises:
          CheckpointError: if they cannot be read.
        """
        import tensorflow as tf

        values = {}
        try:
            with (folder / _FILE).open("rb") as file:
                for name, (type_name, shape) in json.loads(file.readline()).items():
                    dtype = np.dtype(tf.as_dtype(type_name).as_numpy_dtype)
                    data = file.read(math.prod(shape) * dtype.itemsize)
                    values[name] = np.frombuffer(data, dtype).reshape(shape)
        except (OSError, ValueError) as error:
            raise errors.CheckpointError(
                f"cannot read the variables in {folder}: {manifest.first_line(error)}; try again, "
                "or remove the checkpoint's folder to use an older one, if there is one"
            ) from error
        return values

    def save(self, folder: pathlib.Path) -> None:
        """Writes a line of JSON, with the dtype and shape of each variable, and then the values.

        Args:
          folder: see `Part.save`.

        Raises:
          CheckpointError: if a variable holds strings.
        """
        header = {name: (x.dtype.name, x.shape) for name, x in self._values.items()}
        for name, (type_name, _) in header.items():
            if type_name == "object":
                raise errors.CheckpointError(
                    f"expected variables of numbers to save, got strings in {name!r}; save them in "
                    "a JsonPart"
                )
        with (folder / _FILE).open("wb") as file:
            file.write(json.dumps(header).encode() + b"\n")
            for value in self._values.values():
                file.write(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

    def capture(self) -> "VariableValues":
        """Returns this object, whose values do not change."""
        return self

    def first_not_finite(self) -> str | None:
        """Returns the name of the first variable that holds NaN or infinity; None if none does."""
        for name, value in self._values.items():
            # NumPy does not classify bfloat16 as a floating type.
            is_float = value.dtype.kind in "fc" or value.dtype.name == "bfloat16"
            if is_float and not np.isfinite(value).all():
                return name
        return None


class TrackableSubset(TrackablePart):
    """Some of the objects of a saved `TrackablePart`, to restore without the others.

    For example, the network of a training run without its optimizer:

        checkpointer.restore({"learner": TrackableSubset(network=network)})

    A variable that several objects share was saved as a part of only one of them: of the objects
    with the shortest path to it, the first in alphabetical order. Pass that object, too; otherwise
    the restore is refused.
    """

    def check(self, folder: pathlib.Path) -> None:
        """Compares names, shapes and dtypes of this subset's variables with the saved ones.

        Args:
          folder: folder that `TrackablePart.save` wrote.

        Raises:
          CheckpointError: if a variable was not saved, or was saved with another shape or dtype
            (names the first one), or if the saved variables cannot be read.
        """
        self._read(folder)


class JsonValue:
    """State made of JSON types and NumPy arrays, to save as it is now; `JsonPart` restores it."""

    def __init__(self, value: Any):
        """Encodes the state.

        Args:
          value: the state.

        Raises:
          CheckpointError: if it could not be restored exactly; names the position.
        """
        self._text = json.dumps(_plain(value, "state"))

    def save(self, folder: pathlib.Path) -> None:
        """Writes the state. See `Savable.save`."""
        (folder / _STATE).write_text(self._text, encoding="utf-8")

    def capture(self) -> "JsonValue":
        """Returns this object, whose state does not change."""
        return self


class JsonPart:
    """State made of JSON types and NumPy arrays, such as counters and random states.

    State that could not be restored exactly is rejected, such as dicts with keys other than strings
    and arrays of objects.
    """

    def __init__(self, get: Callable[[], Any], set: Callable[[Any], None]):
        """Stores the functions that access the state.

        Args:
          get: returns the state to save.
          set: called with the saved state, in which tuples have become lists, and NumPy scalars
            have become Python numbers.
        """
        self._get = get
        self._set = set

    def save(self, folder: pathlib.Path) -> None:
        """Writes the state.

        Args:
          folder: see `Part.save`.

        Raises:
          CheckpointError: see `capture`.
        """
        self.capture().save(folder)

    def capture(self) -> JsonValue:
        """Returns the current state, to save later.

        Raises:
          CheckpointError: see `JsonValue`.
        """
        return JsonValue(self._get())

    def restore(self, folder: pathlib.Path) -> None:
        """Reads the state and passes it to `set`. See `Part.restore`."""
        text = (folder / _STATE).read_text(encoding="utf-8")
        self._set(json.loads(text, object_hook=_with_array))


class InputPart(JsonPart):
    """The position of an input, in steps, which is valid for any number of replicas.

    Restore it before the first step. With the same `input_fn` and global batch size, the data then
    continues after the last step of the checkpoint. Earlier data is read and dropped, so `input_fn`
    must return the same data in the same order (a shuffle needs a seed). With another number of
    replicas, this works if batches of either size hold the same examples: repeat() the data before
    batch(). If batches with `drop_remainder` are repeated, the global batch size must divide an
    epoch; otherwise each epoch drops different examples.
    """

    def __init__(self, inputs: Any):
        """Stores the input.

        Args:
          inputs: return value of `Replicator.make_inputs`; if a step has used it already, `restore`
            raises `ConfigError`.
        """
        super().__init__(lambda: inputs.position, inputs.go_to)


def _plain(value: Any, where: str) -> Any:
    """Returns a value as JSON types; raises `CheckpointError` if they cannot represent it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(one, f"{where}[{i}]") for i, one in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(one, f"{where}[{key!r}]") for key, one in value.items()}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if type(value) is np.ndarray and value.dtype.kind in "biufcmMSU":
        data = io.BytesIO()
        np.save(data, value, allow_pickle=False)
        return {_ARRAY: base64.b64encode(data.getvalue()).decode()}
    raise errors.CheckpointError(
        "expected JSON types with strings as keys, and NumPy arrays of numbers or strings, got "
        f"{type(value).__name__} at {where}; convert it to these"
    )


def _with_array(value: dict[str, Any]) -> Any:
    """Returns the array that a JSON object holds; the object itself if it holds none."""
    if value.keys() != {_ARRAY}:
        return value
    return np.load(io.BytesIO(base64.b64decode(value[_ARRAY])), allow_pickle=False)


def _shape(variable: Any) -> list[int | None]:
    return variable.shape.as_list()


def _children(view: Any, path: str, node: Any) -> Mapping[str, Any]:
    """Returns an object's children; raises `CheckpointError` if their names are not stable."""
    try:
        return view.children(node)
    except ValueError:
        raise errors.CheckpointError(
            "expected dictionaries with strings as keys, and lists that only grow, among what is "
            f"saved, found something else at {path!r}; name its entries, or leave it out"
        ) from None


def _check_has_no_other_state(path: str, node: Any) -> None:
    """Raises `CheckpointError` for lookup tables, dataset iterators and the like.

    `TrackablePart` saves variables only, so it would lose the state of such objects silently.
    """
    import tensorflow as tf

    # TensorFlow has no public way to ask whether an object saves state of its own.
    hooks = ("_serialize_to_tensors", "_gather_saveables_for_checkpoint")
    for hook in hooks:
        own = getattr(type(node), hook, None)
        if own is not None and own is not getattr(tf.__internal__.tracking.Trackable, hook):
            raise errors.CheckpointError(
                f"expected a checkpoint of variables only, found a {type(node).__name__} at "
                f"{path!r}; remove it from TrackablePart and save it as a part of its own"
            )


def _mismatch(folder: pathlib.Path, name: str, here: str, there: str) -> errors.CheckpointError:
    return errors.CheckpointError(
        f"the checkpoint in {folder} does not fit: variable {name!r}: expected {here}, found "
        f"{there}; use the settings with which it was saved"
    )
