"""The layouts of tensors and variables on a mesh of devices."""

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
from rl_replicator.step import variable_registry

# The mesh dimension over which batches are sharded.
DATA = "data"
_NONE = "none"


class Layouts:
    """Chooses the layouts of variables by their names.

    A rule consists of a regular expression, which is searched for in the name (such as
    "mlp/linear_1/w"), and, for each dimension of the variable, the mesh dimension over which to
    shard it or "none". The first rule that matches applies. A rule that matches no variable is an
    error when a step is built. An optimizer's slot has the layout of its parameter. All other
    variables are replicated.
    """

    def __init__(self, mesh: dtensor.Mesh, rules: Mapping[str, Sequence[str]]):
        """Checks the rules.

        Args:
          mesh: the mesh.
          rules: mesh dimensions by regular expression; see the class.

        Raises:
          ConfigError: if a regular expression is malformed, or a mesh dimension is unknown.
        """
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
          name: name of the variable with its scopes, without ":0".
          shape: static shape of the variable.

        Raises:
          ConfigError: if the rule does not fit the variable's rank, or a mesh dimension does not
            divide a dimension of the variable.
        """
        layout = getattr(slots.owner(shape), "layout", None)
        if layout is not None:
            return layout
        dims = tuple(shape.as_list())
        replicated = dtensor.Layout.replicated(self._mesh, len(dims))
        if slots.owner(None) is not None:  # A slot of another shape, such as Adafactor's.
            return replicated
        self._names.add(name)
        return self._by_rule(name, dims) or replicated

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
        """Checks that every rule matches a variable.

        Raises:
          ConfigError: if one matches none; names the first one.
        """
        for pattern in sorted(self._unused):
            raise errors.ConfigError(
                f"expected layout {pattern!r} to match the name of a variable, found none among "
                f"{', '.join(sorted(self._names)) or 'no variables'}; correct the expression or "
                "remove it"
            )


class MeshVariable(resource_variable_ops.BaseResourceVariable):
    """A variable on a mesh that is read and assigned like any other variable outside of a step.

    In a step, its value is a DTensor. Outside of steps, it is a plain tensor of the whole variable:
    `numpy()`, eager calls of models, and checkpoints work as on one device. Checkpoints hold the
    whole variable, so that any replicator can restore them. Gradients exist in steps only.

    It is not a subclass of `DVariable`, because TensorFlow's kernels read instances of
    `ResourceVariable` without calling their Python methods, and fail to mix DTensors with plain
    tensors. The methods with an underscore override those of TensorFlow's variables: all reads go
    through `_read_variable_op`, and checkpoints use the methods of `Trackable`.

    Attributes:
      layout: layout on the mesh.
    """

    def __init__(
        self,
        value: tf.Tensor,
        *,
        layout: dtensor.Layout,
        aggregation: tf.VariableAggregation,
        **options: Any,
    ):
        """Creates the variable.

        Args:
          value: initial value of the whole variable, a plain tensor.
          layout: layout on the mesh.
          aggregation: aggregation of copies that the caller requests, although there are none.
          **options: see `tf.Variable`.
        """
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
            aggregation=aggregation,
        )

    def shards(self) -> dict[str, tf.Tensor]:
        """Returns the shard of each device of the mesh, by the device's name."""
        return {part.device: part for part in dtensor.unpack(self._on_mesh.read_value())}

    @property
    def device(self) -> str:
        """Device of the value outside of a step; not the mesh, which accepts no plain tensors."""
        return self._host

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        value = super()._read_variable_op(no_copy)
        return whole(value, self.layout) if tf.executing_eagerly() else value

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Reads the slices at some indices; `tf.gather` and `tf.nn.embedding_lookup` call it."""
        if not tf.executing_eagerly():
            return super().sparse_read(indices, name)
        return tf.gather(self.read_value(), indices, name=name)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Reads the elements or slices at some indices; `tf.gather_nd` calls it."""
        # Reads the whole value in a step, too: DTensor has no operation for parts of a variable.
        return tf.gather_nd(self.read_value(), indices, name=name)

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        with tf.device("/cpu:0"):
            return {_VALUE: tf.identity(self._read_variable_op())}

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> tf.Variable:
        return self.assign(restored_tensors[_VALUE])

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assigns a value; outside of a step, a plain tensor of the whole variable."""
        return self._change(super().assign, value, args, kwargs)

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds a value; outside of a step, a plain tensor of the whole variable."""
        return self._change(super().assign_add, delta, args, kwargs)

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """Subtracts a value; outside of a step, a plain tensor of the whole variable."""
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
    """Creates a variable on the mesh; a variable creator for `tf.variable_creator_scope`.

    Args:
      layouts: chooses the variable's layout.
      next_creator: ignored.
      **kwargs: see `tf.Variable`.

    Raises:
      ConfigError: if the initial value is computed in a graph; see also `Layouts.choose`.
    """
    del next_creator
    initial = variable_registry.initial_value(kwargs["initial_value"], kwargs.get("name"))
    name = kwargs.get("name") or "Variable"
    with tf.init_scope():
        with tf.name_scope(name) as full_name:
            pass
        value = initial() if callable(initial) else initial
        value = tf.convert_to_tensor(value, kwargs.get("dtype"))
        layout = layouts.choose(full_name.rstrip("/"), value.shape)
        check_type(layout.mesh, value.dtype, (tf.int32, tf.string), f"variable {name!r}")
        trainable = kwargs.get("trainable")
        if trainable is None:
            trainable = kwargs.get("synchronization") != tf.VariableSynchronization.ON_READ
        return MeshVariable(
            value,
            layout=layout,
            aggregation=kwargs.get("aggregation") or tf.VariableAggregation.NONE,
            name=name,
            trainable=trainable,
            constraint=kwargs.get("constraint"),
        )


def check_type(
    mesh: dtensor.Mesh, dtype: tf.DType, host_types: Sequence[tf.DType], name: str
) -> None:
    """Rejects types that TensorFlow keeps in the host's memory, if the mesh consists of GPUs.

    Args:
      mesh: the mesh.
      dtype: type of a tensor or variable.
      host_types: types to reject.
      name: name of the tensor in the error.

    Raises:
      ConfigError: if `dtype` is one of `host_types`, and the devices are GPUs.
    """
    if mesh.device_type() == "GPU" and dtype in host_types:
        raise errors.ConfigError(
            f"expected types that TensorFlow keeps on GPUs, got {dtype.name} for {name}; use "
            "another type, such as int64, or multi_device"
        )


def spread(value: tf.Tensor, layout: dtensor.Layout) -> tf.Tensor:
    """Copies a plain tensor to a mesh, each shard to its devices.

    All copies start from the host. `dtensor.copy_to_mesh` instead communicates over the mesh, which
    deadlocks if a process has two meshes.

    Args:
      value: a plain tensor.
      layout: layout of the result.

    Returns:
      A DTensor.
    """
    indices = _indices(layout)
    if layout.is_fully_replicated():
        return dtensor.pack([value] * len(indices), layout)
    parts = {index: value[_slices(index, layout, value.shape)] for index in set(indices)}
    return dtensor.pack([parts[index] for index in indices], layout)


def whole(value: tf.Tensor, layout: dtensor.Layout) -> tf.Tensor:
    """Copies a DTensor to a plain tensor; the inverse of `spread`.

    Args:
      value: a DTensor.
      layout: layout of the DTensor.

    Returns:
      A plain tensor.
    """
    components = dtensor.unpack(value)
    if layout.is_fully_replicated():
        return components[0]
    result = np.empty(value.shape, value.dtype.as_numpy_dtype)
    for index, component in zip(_indices(layout), components, strict=True):
        result[_slices(index, layout, value.shape)] = component.numpy()
    return tf.constant(result)


def batch_layout(mesh: dtensor.Mesh, rank: int) -> dtensor.Layout:
    """Returns the layout of an input: its first dimension is sharded over `DATA`.

    Args:
      mesh: the mesh; without the dimension `DATA`, the input is replicated.
      rank: rank of the input.
    """
    if rank and DATA in mesh.dim_names:
        return dtensor.Layout.batch_sharded(mesh, DATA, rank)
    return dtensor.Layout.replicated(mesh, rank)


def _slices(
    index: tuple[int, ...], layout: dtensor.Layout, shape: tf.TensorShape
) -> tuple[slice, ...]:
    """Returns the part of a whole tensor that a shard holds."""
    specs = zip(layout.sharding_specs, shape, strict=True)
    sizes = [
        n if axis == dtensor.UNSHARDED else n // layout.mesh.dim_size(axis) for axis, n in specs
    ]
    return tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, sizes, strict=True))


def _indices(layout: dtensor.Layout) -> list[tuple[int, ...]]:
    """Returns the index of the shard of each device, in the order of the mesh's devices.

    The last mesh dimension varies fastest.
    """
    names = layout.mesh.dim_names
    places = itertools.product(*(range(layout.mesh.dim_size(name)) for name in names))
    return [
        tuple(
            0 if axis == dtensor.UNSHARDED else place[names.index(axis)]
            for axis in layout.sharding_specs
        )
        for place in places
    ]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise errors.ConfigError(
            f"expected a regular expression on variable names, got {pattern!r} ({error}); "
            "escape its special characters"
        ) from None


def size_of(mesh: dtensor.Mesh, axis: str) -> int:
    """Returns the number of devices along a dimension; 1 if the mesh does not have it."""
    return int(mesh.dim_size(axis)) if axis in mesh.dim_names else 1
