"""Model parallelism by hand: parts of one replica's step on several devices."""

import contextlib
import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors

# Marks, in the scope of an operation's name, what belongs to a logical device.
_MARK = "logical_device"
_MARKED = re.compile(_MARK + r"_(\d+)(/|$)")


class LogicalDevices:
    """Places operations and variables on the logical devices of each replica.

    TensorFlow's `tf.device` places what is called inside of it: the forward pass. The rest is
    placed here, by one function that TensorFlow asks about every operation when it is created:

    * What touches a variable runs where the variable lies.
    * A gradient runs where its forward operation ran. A tape creates gradients under a name scope
      that it has noted in the forward pass, so a mark in that note names the device. The note
      alone is marked, not the scope itself, which Sonnet's layers leave for their own.
    * The update of a parameter runs where the parameter lies; see `Placed`.

    A hand-written gradient (`tf.custom_gradient`, and so `tf.nn.swish`) leaves no note: it runs on
    the device of the call of the tape unless it opens the context of a logical device itself.
    """

    def __init__(self, devices: Sequence[Sequence[str]]):
        """Takes the names of each replica's logical devices: equally many, the main one first."""
        self._devices = [[_short(name) for name in names] for names in devices]
        self._num = len(self._devices[0])
        self._variables: list[tuple[str, int, weakref.ref]] = []
        self._state = _State()

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        """See `Replicator.logical_device`."""
        if not 0 <= index < self._num:
            raise errors.ConfigError(
                f"expected a logical device in [0, {self._num}), got {index}; make the replicator "
                f"with more, e.g. multi_device:{len(self._devices)}x{index + 1}"
                if index > 0
                else f"expected a logical device in [0, {self._num}), got {index}; count from 0"
            )
        before, self._state.index = self._state.index, index
        try:
            if self._state.replica is None:  # Outside of a step: for `create` to see.
                yield
            else:
                with tf.device(self._devices[self._state.replica][index]):
                    yield
        finally:
            self._state.index = before

    @contextlib.contextmanager
    def tracing(self, replica: int) -> Iterator[None]:
        """Entered by the function of each replica, in its thread and in the graph of the step."""
        self._mark(tf.compat.v1.get_default_graph())
        self._state.replica = replica
        try:
            with tf.compat.v1.device(self._place):
                yield
        finally:
            self._state.replica = None

    def _mark(self, graph: tf.Graph) -> None:
        """Has tapes note the logical device: they note what `get_name_scope` returns."""

        def get_name_scope() -> str:
            scope = type(graph).get_name_scope(graph)
            # Replicas are traced in threads, in turns; each has a state of its own.
            index = self._state.index
            return scope if index is None else f"{_MARK}_{index}/{scope}"

        graph.get_name_scope = get_name_scope

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Operations inside follow their inputs to the logical devices but the first."""
        self._state.follows = True
        try:
            yield
        finally:
            self._state.follows = False

    def _place(self, op: tf.Operation) -> str:
        """The device for a new operation; what `tf.device` said so far unless there is a reason."""
        devices = self._devices[self._state.replica or 0]
        for x in op.inputs:
            if x.dtype == tf.resource:
                home = _short(_origin(x).device)
                return home if home in devices else op.device
        found = _MARKED.search(_scopes(op))
        if found:
            return devices[int(found[1])]
        if self._state.follows or _adds_gradients(op):
            for x in op.inputs:
                if x.shape.rank != 0 and _short(x.device) in devices[1:]:
                    return x.device
        return op.device

    def create(self, next_creator: Any, **kwargs: Any) -> tf.Variable:
        """A variable creator for each replica's part of a variable, below the strategy's.

        A variable lies on the logical device in whose context it is created; an optimizer's slot,
        which ends in the name of its parameter, where that one lies.
        """
        with tf.init_scope():
            current = _short(tf.zeros([]).device)
            replica = next((i for i, d in enumerate(self._devices) if d[0] == current), 0)
        # Inside a step, the mark comes along; it is no part of the variable's name.
        scope = _MARKED.sub("", tf.get_current_name_scope())
        name = "/".join(filter(None, [scope, kwargs.get("name") or "Variable"]))
        name = re.sub(r"/replica_\d+/$", "", name)
        index = self._state.index
        if index is None:
            index = self._of_parameter(name, kwargs["initial_value"])
        with tf.name_scope(scope + "/" * bool(scope)), tf.device(self._devices[replica][index]):
            variable = next_creator(**kwargs)
        self._variables.append((name, index, weakref.ref(variable)))
        return variable

    def _of_parameter(self, name: str, initial: Any) -> int:
        shape = None if callable(initial) else tf.convert_to_tensor(initial).shape
        found: dict[int, str] = {}
        for parameter, index, reference in self._variables:
            variable = reference()
            if variable is None or not name.endswith("/" + parameter):
                continue
            if shape is None or variable.shape == shape:
                found[index] = parameter
        if len(found) > 1:
            raise errors.ConfigError(
                f"expected parameters on different logical devices to have different names, found "
                f"{found.popitem()[1]!r} on several, so it is not known whose slot {name!r} is; "
                "give the layers names"
            )
        return next(iter(found), 0)


class Placed:
    """Mixed in before the class of a Sonnet optimizer: updates parameters where they lie."""

    _logical_devices: LogicalDevices

    def apply(self, updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
        with self._logical_devices.following():
            moved = [
                _moved(update, parameter)
                for update, parameter in zip(updates, parameters, strict=True)
            ]
            super().apply(moved, parameters)  # type: ignore[misc]


def place(optimizer: Any, logical_devices: LogicalDevices) -> Any:
    """Gives the optimizer a class that is also `Placed`, and returns it."""
    kind: Any = type(optimizer)
    make_class: Any = type(kind)
    body = {"_logical_devices": logical_devices}
    optimizer.__class__ = make_class(kind.__name__, (Placed, kind), body)
    return optimizer


def _moved(update: Any, parameter: tf.Variable) -> Any:
    if not isinstance(update, tf.Tensor) or not tf.is_symbolic_tensor(update):
        return update
    with tf.device(_origin(parameter.handle).device):
        return tf.identity(update)


class _State(threading.local):
    """What is being traced in this thread."""

    replica: int | None = None
    index: int | None = None
    follows: bool = False


def _short(device: str) -> str:
    """What tells the devices of one process apart in their names, such as "/device:CPU:1"."""
    spec = tf.DeviceSpec.from_string(device)
    return f"/device:{(spec.device_type or 'CPU').upper()}:{spec.device_index or 0}"


def _origin(handle: tf.Tensor) -> tf.Tensor:
    """What a graph, or one inside another, has captured as `handle`."""
    while tf.is_symbolic_tensor(handle):
        outside = [x for x, inside in handle.graph.captures if inside is handle]
        if not outside:
            break
        handle = outside[0]
    return handle


def _adds_gradients(op: tf.Operation) -> bool:
    """Whether a tape adds up the gradients of what was used several times."""
    return op.type == "AddN" and all(_MARKED.search(x.op.name) for x in op.inputs)


def _scopes(op: tf.Operation) -> str:
    """The operation's name, after those of the scopes in which its graph is being built."""
    names = [op.name]
    graph = getattr(op.graph, "outer_graph", None)
    while isinstance(graph, tf.Graph):
        names.append(type(graph).get_name_scope(graph) + "/")
        graph = getattr(graph, "outer_graph", None)
    return "".join(reversed(names))
