"""How tensors and variables lie on a mesh of devices."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python.ops import resource_variable_ops

from rl_replicator import errors
from rl_replicator.optimizers import slots

# The mesh dimension over which the batch is spread.
DATA = "data"
_NONE = "none"


class Layouts:
    """Layouts of variables by their name.

    A rule is a regular expression, searched for in the name (such as "mlp/linear_1/w"), and for
    each dimension of the variable the mesh dimension over which it is split, or "none". The first
    rule that matches applies; one that matches no variable is refused when a step is built. An
    optimizer's slot has the layout of its parameter. All other variables are replicated.
    """

    def __init__(self, mesh: dtensor.Mesh, rules: Mapping[str, Sequence[str]]):
        """Raises `ConfigError` for a rule that the mesh cannot follow."""
        self._mesh = mesh
        self._rules = [(_compiled(pattern), tuple(spec)) for pattern, spec in rules.items()]
        for pattern, spec in self._rules:
            for axis in spec:
                if axis != _NONE and axis not in mesh.dim_names:
                    raise errors.ConfigError(
                        f"expected layout {pattern.pattern!r} to name dimensions of the mesh "
                        f"({', '.join(mesh.dim_names)}) or {_NONE!r}, got {axis!r}; write one of "
                        "them for each dimension of the variable"
                    )
        self._unused = {pattern.pattern for pattern, _ in self._rules}
        self._names: set[str] = set()

    def choose(self, name: str, shape: tf.TensorShape) -> dtensor.Layout:
        """Returns the layout for a new variable.

        Args:
          name: with its scopes, but without ":0".
          shape: fully defined.

        Raises:
          ConfigError: a rule that does not fit the variable's rank, or does not divide it.
        """
        layout = getattr(slots.owner(shape), "layout", None)
        if layout is not None:
            return layout
        dims = tuple(shape.as_list())
        self._names.add(name)
        return self._by_rule(name, dims) or dtensor.Layout.replicated(self._mesh, len(dims))

    def _by_rule(self, name: str, dims: tuple[int, ...]) -> dtensor.Layout | None:
        for pattern, spec in self._rules:
            if not pattern.search(name):
                continue
            self._unused.discard(pattern.pattern)
            if len(spec) != len(dims):
                raise errors.ConfigError(
                    f"expected layout {pattern.pattern!r} to name {len(dims)} dimensions for "
                    f"{name!r} {dims}, got {spec}; write a mesh dimension or {_NONE!r} for each"
                )
            for size, axis in zip(dims, spec, strict=True):
                if axis != _NONE and size % self._mesh.dim_size(axis):
                    raise errors.ConfigError(
                        f"expected dimensions of {name!r} {dims} that {axis}="
                        f"{self._mesh.dim_size(axis)} divides, got {size}; change the size, the "
                        f"mesh or layout {pattern.pattern!r}"
                    )
            return dtensor.Layout(
                [dtensor.UNSHARDED if axis == _NONE else axis for axis in spec], self._mesh
            )
        return None

    def check_used(self) -> None:
        """Refuses rules that match no variable.

        Raises:
          ConfigError: names the first such rule.
        """
        for pattern in sorted(self._unused):
            raise errors.ConfigError(
                f"expected layout {pattern!r} to match the name of a variable, found none among "
                f"{', '.join(sorted(self._names)) or 'no variables'}; correct the expression or "
                "remove it"
            )


class MeshVariable(resource_variable_ops.BaseResourceVariable):
    """A variable that lies on a mesh, yet reads and assigns as any other outside of a step.

    Outside of a step its value is a plain tensor of the whole variable: `numpy()`, models called
    eagerly and checkpoints (which hold the whole, so that any replicator can restore them) work
    as on one device. Gradients flow to it in steps only. Inside of them it is a DTensor.

    Not a subclass of `DVariable`: whatever is one of TensorFlow's `ResourceVariable`, its kernels
    read past Python, and then refuse to mix with plain tensors. The methods with an underscore
    are what TensorFlow has its variables override: `_read_variable_op`, through which all reads
    go, and those of `Trackable` for checkpoints.
    """

    def __init__(self, value: tf.Tensor, *, layout: dtensor.Layout, **options: Any):
        """Takes a plain value of the whole variable; `options` as of `tf.Variable`."""
        # Owns the memory on the devices.
        self._on_mesh = dtensor.DVariable(spread(value, layout), **options)
        self.layout = layout
        self._host = value.device
        super().__init__(
            handle=self._on_mesh.handle,
            handle_name=self._on_mesh.name.removesuffix(":0"),
            unique_id=self._on_mesh._unique_id,
            shape=value.shape,
            dtype=value.dtype,
            trainable=self._on_mesh.trainable,
            constraint=self._on_mesh.constraint,
        )

    def shards(self) -> dict[str, tf.Tensor]:
        """What each device of the mesh holds, by the device's name."""
        return {part.device: part for part in dtensor.unpack(self._on_mesh.read_value())}

    @property
    def device(self) -> str:
        """Where its values are outside of a step; not the mesh, which takes no plain tensors."""
        return self._host

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        value = super()._read_variable_op(no_copy)
        return whole(value, self.layout) if tf.executing_eagerly() else value

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        with tf.device("/cpu:0"):
            return {_VALUE: tf.identity(self._read_variable_op())}

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> tf.Variable:
        return self.assign(restored_tensors[_VALUE])

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return self._change(super().assign, value, args, kwargs)

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return self._change(super().assign_add, delta, args, kwargs)

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return self._change(super().assign_sub, delta, args, kwargs)

    def _change(self, method: Any, value: Any, args: Any, kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            return method(value, *args, **kwargs)
        plain = tf.convert_to_tensor(value, self.dtype)
        if plain.shape != self.shape:
            raise ValueError(
                f"expected a value of shape {self.shape} for {self.name!r}, got {plain.shape}; "
                "assign the whole variable"
            )
        method(spread(plain, self.layout), *args, **kwargs)
        return self


_VALUE = "VARIABLE_VALUE"  # The name of every variable's value in TensorFlow's checkpoints.


def create(layouts: Layouts, next_creator: Any, **kwargs: Any) -> tf.Variable:
    """A variable creator, see `tf.variable_creator_scope`, that puts variables on the mesh.

    Raises:
      ConfigError: an initial value that depends on what a step computes; or see `Layouts.choose`.
    """
    del next_creator
    initial = kwargs["initial_value"]
    if tf.is_symbolic_tensor(initial):
        constant = tf.get_static_value(initial)
        if constant is None:
            raise errors.ConfigError(
                f"expected an initial value that is known before the step for variable "
                f"{kwargs.get('name')!r}, got {initial.name!r}; create it before `replicate`"
            )
        initial = constant
    name = kwargs.get("name") or "Variable"
    with tf.init_scope():
        with tf.name_scope(name) as full_name:
            pass
        value = initial() if callable(initial) else initial
        value = tf.convert_to_tensor(value, kwargs.get("dtype"))
        layout = layouts.choose(full_name.rstrip("/"), value.shape)
        trainable = kwargs.get("trainable")
        if trainable is None:
            trainable = kwargs.get("synchronization") != tf.VariableSynchronization.ON_READ
        return MeshVariable(
            value,
            layout=layout,
            name=name,
            trainable=trainable,
            constraint=kwargs.get("constraint"),
        )


def spread(value: tf.Tensor, layout: dtensor.Layout) -> tf.Tensor:
    """Puts a plain tensor on a mesh, each part on its devices. Copies from the host only.

    (`dtensor.copy_to_mesh` sends through the mesh, and two meshes in a process make it wait for
    ever.)
    """
    parts = {}
    components = []
    for index in _indices(layout):
        if index not in parts:
            parts[index] = _part(value, index, layout)
        components.append(parts[index])
    return dtensor.pack(components, layout)


def whole(value: tf.Tensor, layout: dtensor.Layout) -> tf.Tensor:
    """The inverse of `spread`."""
    components = dtensor.unpack(value)
    if layout.is_fully_replicated():
        return components[0]
    # Not along the first dimensions first: the last ones must be complete before they are joined.
    parts = dict(zip(_indices(layout), components, strict=True))
    counts = _counts(layout)
    for axis in reversed(range(len(counts))):
        parts = {
            index: tf.concat([parts[(*index, i)] for i in range(counts[axis])], axis)
            if counts[axis] > 1
            else parts[(*index, 0)]
            for index in itertools.product(*(range(n) for n in counts[:axis]))
        }
    return parts[()]


def batch_layout(mesh: dtensor.Mesh, rank: int) -> dtensor.Layout:
    """The layout of an input: its first dimension over `DATA`, if the mesh has that."""
    if rank and DATA in mesh.dim_names:
        return dtensor.Layout.batch_sharded(mesh, DATA, rank)
    return dtensor.Layout.replicated(mesh, rank)


def _counts(layout: dtensor.Layout) -> list[int]:
    """Into how many parts each dimension of the tensor is split."""
    return [
        1 if axis == dtensor.UNSHARDED else layout.mesh.dim_size(axis)
        for axis in layout.sharding_specs
    ]


def _indices(layout: dtensor.Layout) -> list[tuple[int, ...]]:
    """Which part each device holds, in the order of the mesh's devices (the last axis fastest)."""
    names = layout.mesh.dim_names
    places = itertools.product(*(range(layout.mesh.dim_size(name)) for name in names))
    return [
        tuple(
            0 if axis == dtensor.UNSHARDED else place[names.index(axis)]
            for axis in layout.sharding_specs
        )
        for place in places
    ]


def _part(value: tf.Tensor, index: tuple[int, ...], layout: dtensor.Layout) -> tf.Tensor:
    counts = _counts(layout)
    if all(count == 1 for count in counts):
        return value
    sizes = [size // count for size, count in zip(value.shape, counts, strict=True)]
    begin = [i * size for i, size in zip(index, sizes, strict=True)]
    return tf.slice(value, begin, sizes)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise errors.ConfigError(
            f"expected a regular expression on variable names, got {pattern!r} ({error}); "
            "escape its special characters"
        ) from None


def size_of(mesh: dtensor.Mesh, axis: str) -> int:
    """How many devices lie along a dimension; 1 for one that the mesh does not have."""
    return int(mesh.dim_size(axis)) if axis in mesh.dim_names else 1


def num_devices(dimensions: Mapping[str, int]) -> int:
    return int(np.prod(list(dimensions.values())))
