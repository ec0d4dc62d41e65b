"""Steps on a mesh: the host takes the input, and DTensor distributes the compiled step."""

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python.eager import context as eager_context
from tensorflow.python.ops import control_flow_util_v2

from rl_replicator import errors
from rl_replicator.backends.mesh import layouts
from rl_replicator.layers import statistics
from rl_replicator.step import compiled, host, output_arrays, random_ops, variable_registry
from rl_replicator.step.inputs import contract, sources

# Operations that DTensor does not support, and what to use instead. For some of them DTensor itself
# raises a long error, but only when the step runs; with others it crashes or returns wrong results.
# The list was found by comparing DTensor's results with those of one device.
_REFUSED = {
    **dict.fromkeys(("Case", "StatelessCase"), "use tf.cond"),
    "Where": "use tf.where(condition, x, y) instead of a mask that changes shapes",
    **dict.fromkeys(
        ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
        "for batch norm, use rr.CrossReplicaBatchNorm, or fused=False in Keras, with statistics of "
        "all devices; for Keras' LayerNormalization, snt.LayerNorm, or an epsilon of at most 1e-5",
    ),
    **dict.fromkeys(
        ("EagerPyFunc", "PrintV2", "PyFunc", "PyFuncStateless"),
        "return the tensor from step_fn, or compute it in the input",
    ),
    **dict.fromkeys(
        (
            *("ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterUpdate"),
            "ResourceSparseApplyAdam",
        ),
        "make sparse gradients dense with tf.convert_to_tensor before optimizer.apply",
    ),
    "TensorListConcatV2": "for sparse gradients, make them dense with tf.convert_to_tensor in the "
    "function of micro_batches.accumulate; for a tf.TensorArray, use tf.concat of a list",
}

_WHERE = (
    "use tf.where(tf.fill(tf.shape(x), condition), x, y), or tf.cond, if the condition is a scalar"
)
_MERGED = (
    "clipping merges the rows of sparse gradients: make these dense with "
    "tf.convert_to_tensor before optimizer.apply"
)
_LOCK = threading.RLock()
_RANDOM = (
    "use tf.random.stateless_*, a tf.random.Generator made in replicator.scope(), or a callable "
    "input, which runs on the host"
)


class HostCallableInputs(sources.CallableInputs):
    """A callable input that runs on the host before each step, and not on the mesh.

    It can therefore do what a mesh cannot: draw random numbers, call Python, or sample a replay
    table.
    """

    def __init__(self, inputs: sources.CallableInputs, registry: variable_registry.Registry):
        """Traces the callable.

        Args:
          inputs: holds the callable.
          registry: registry of the mesh's variables.

        Raises:
          ConfigError: if the callable uses variables of the mesh.
        """
        function = inputs.split(())[0]
        super().__init__([function], 1)
        self._sample = tf.function(lambda: function(), autograph=False).get_concrete_function()
        if any(registry.owns(handle) for handle, _ in self._sample.graph.captures):
            raise errors.ConfigError(
                "expected a callable input that uses no variables of replicator.scope(), because "
                "it runs on the host and not on the mesh, found one that does; use them in step_fn"
            )
        self._spec = self._sample.structured_outputs
        self.specs = tuple(tf.TensorSpec(x.shape, x.dtype) for x in _tensors(self._spec))

    def take(self, *arguments: Any) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        status, _ = super().take(*arguments)
        flat = tf.cond(
            tf.equal(status, contract.ELEMENT),
            lambda: _tensors(self._sample()),
            lambda: [output_arrays.blank(s) for s in self.specs],
        )
        return status, flat or ()

    def split(self, row: Sequence[tf.Tensor]) -> list[Any]:
        rest = iter(row)
        leaves = tf.nest.flatten(self._spec, expand_composites=True)
        flat = [None if leaf is None else next(rest) for leaf in leaves]
        return [tf.nest.pack_sequence_as(self._spec, flat, expand_composites=True)]

    def element(self, part: Any) -> Any:
        return part


def _tensors(nest: Any) -> list[tf.Tensor]:
    return [x for x in tf.nest.flatten(nest, expand_composites=True) if x is not None]


class MeshHost(host.LocalHost):
    """The devices of a mesh, which together are one replica.

    Attributes:
      mesh: the mesh.
      layouts: chooses the layouts of variables.
    """

    def __init__(self, mesh: dtensor.Mesh, rules: layouts.Layouts):
        """Stores mesh and layouts."""
        super().__init__()
        self.mesh = mesh
        self.layouts = rules

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        create = functools.partial(layouts.create, self.layouts)
        with tf.variable_creator_scope(create), super().scope():
            yield

    def failure(self, error: Exception) -> Exception:
        # DTensor's own errors about unsupported operations, raised by the first call of a step.
        found = re.search(r"error: (?:'tf\.(\w+)' op )?(.*)", str(error))
        if not found or not isinstance(error, tf.errors.UnknownError):
            return error
        operation = found[1] or next(iter(re.findall(r'"tf\.(\w+)"', str(error))), "one")
        reason = found[2].split("Please")[0].strip(" .")
        return errors.ConfigError(
            f"expected operations that DTensor supports, got {operation} ({reason}); change that "
            "part of the step or its layout, or use another replicator"
        )


class MeshStep(compiled.ReplicatedStep):
    """A step on a mesh.

    The host loops over the steps of a call. In measurements, a loop in the graph was no faster, and
    an unrolled one took many times longer to compile.
    """

    _host: MeshHost

    def _trace_step(self) -> Any:
        traced = super()._trace_step()
        # A skipped step restores the statistics that existed when its trace began. On other hosts,
        # tf.function itself traces again once variables exist; it does not see those of a mesh.
        if len(statistics.among(self._host.registry.created())) > len(self._statistics):
            traced = super()._trace_step()
        return traced

    def _one_step(self, *row: tf.Tensor) -> list[tf.Tensor]:
        with _conditions_as_calls():
            return super()._one_step(*row)

    def _compile(self, one_step: Any) -> Callable[..., list[tf.Tensor]]:
        self._host.layouts.check_used()
        _check_operations(one_step)
        _move_captures(one_step, self._host.mesh)
        take = tf.function(self._take_and_count, autograph=False).get_concrete_function(
            *self._inputs.argument_specs
        )
        output_layouts: list[dtensor.Layout] = []
        context = eager_context.context()
        config = context.config
        # Folding turns `0.0 * w` into zeros of the shape of the whole variable, on each device.
        rewriting = config.graph_options.rewrite_options
        rewriting.constant_folding = rewriting.OFF
        without_folding = eager_context.FunctionCallOptions(config_proto=config)

        def call(*arguments: Any) -> list[tf.Tensor]:
            rows: list[list[tf.Tensor]] = []
            status = tf.constant(contract.ELEMENT)
            while len(rows) < (self.steps_per_call or 1):
                status, *row = take(*arguments)
                if int(status) != contract.ELEMENT:
                    break
                entry = self._spread(row)
                usual, context.function_call_options = (
                    context.function_call_options,
                    without_folding,
                )
                try:
                    flat = one_step(*entry) or []
                finally:
                    context.function_call_options = usual
                if not output_layouts:  # They are equal in every step, and slow to fetch.
                    output_layouts.extend(dtensor.fetch_layout(x) for x in flat)
                # The copy waits for the step, so that its errors are raised here.
                pairs = zip(flat, output_layouts, strict=True)
                rows.append([tf.identity(layouts.whole(x, layout)) for x, layout in pairs])
            head = tf.constant([int(status), len(rows)])
            if self.steps_per_call is None:
                return [head, *(rows[0] if rows else [])]
            return [head, *output_arrays.combine(tf.stack, rows)]

        return call

    def _take_and_count(self, *arguments: Any) -> list[tf.Tensor]:
        status, row = self._take(arguments)
        tf.cond(
            tf.equal(status, contract.ELEMENT),
            lambda: tf.group(self._inputs.advance()),
            lambda: tf.no_op(),
        )
        return [status, *row]

    def _spread(self, row: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        mesh = self._host.mesh
        _check_batches([x.shape for x in row], layouts.size_of(mesh, layouts.DATA))
        return [layouts.spread(x, layouts.batch_layout(mesh, x.shape.rank)) for x in row]


@contextlib.contextmanager
def _conditions_as_calls() -> Iterator[None]:
    """Makes each `tf.cond` and loop that is traced inside call its branches, or its body.

    Otherwise TensorFlow inlines the branches into the surrounding graph. DTensor rewrites them
    without control outputs, so an assignment in a branch is lost if nothing uses the result.
    """
    with _LOCK:
        before = control_flow_util_v2._DISABLE_LOWER_USING_SWITCH_MERGE
        control_flow_util_v2._DISABLE_LOWER_USING_SWITCH_MERGE = True
        try:
            yield
        finally:
            control_flow_util_v2._DISABLE_LOWER_USING_SWITCH_MERGE = before


def check_specs(specs: Sequence[Any], mesh: dtensor.Mesh) -> None:
    """Checks that inputs can be sharded over the mesh.

    Args:
      specs: flat specs of an element. Each component of a ragged or sparse tensor counts as a
        tensor of its own, so such data passes only if the mesh divides them all.
      mesh: the mesh.

    Raises:
      ConfigError: if a spec is not a tensor of known rank, the size of the mesh dimension "data"
        does not divide its first dimension, or it is a string and the mesh consists of GPUs.
    """
    for spec in specs:
        if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
            raise errors.ConfigError(
                f"expected tensors of known rank as inputs of a mesh, got {spec}; "
                "batch() or pad the data"
            )
        layouts.check_type(mesh, spec.dtype, (tf.string,), f"the input {spec}")
    _check_batches([spec.shape for spec in specs], layouts.size_of(mesh, layouts.DATA))


def _check_batches(shapes: Sequence[tf.TensorShape], data_size: int) -> None:
    for shape in shapes:
        if shape.rank and shape[0] is not None and shape[0] % data_size:
            raise errors.ConfigError(
                f"expected inputs whose first dimension {layouts.DATA}={data_size} divides, got "
                f"shape {tuple(shape)}; use a batch size that is a multiple of {data_size}, and "
                "batch(..., drop_remainder=True) or pad_to for finite data"
            )


def _check_operations(function: tf.types.experimental.ConcreteFunction) -> None:
    """Raises `ConfigError` if a step uses operations that DTensor does not support."""
    definition = function.graph.as_graph_def(add_shapes=True)
    graphs: list[tuple[Any, dict[str, Any]]] = [(definition.node, {})]
    for f in definition.library.function:
        names = [argument.name for argument in f.signature.input_arg]
        graphs.append((f.node_def, {names[i]: attrs for i, attrs in f.arg_attr.items()}))
    for nodes, arguments in graphs:
        by_name = {**arguments, **{node.name: node for node in nodes}}
        for node in nodes:
            advice = _RANDOM if random_ops.is_stateful(node) else _REFUSED.get(node.op)
            if node.op == "StridedSlice":
                advice = _check_slice(node, by_name)
            if node.op in ("Select", "SelectV2") and _rank(node.input[0], by_name) == 0:
                # DTensor crashes unless all operands are scalars.
                advice = _WHERE if _rank(node.name, by_name) else None
            if node.op == "UnsortedSegmentMax" and _source(node.input[1], by_name) == "Unique":
                advice = _MERGED
            if node.op == "Mean" and tf.dtypes.as_dtype(node.attr["T"].type).is_integer:
                # DTensor rounds the mean of each device, and then rounds their mean.
                advice = "use tf.cast to a float before tf.reduce_mean"
            if node.op == "ScatterNd" and node.attr["Tindices"].type == tf.int64.as_datatype_enum:
                # DTensor always passes an int32 shape, which int64 indices do not fit: it raises an
                # error or crashes.
                advice = "use int32 indices in tf.scatter_nd, and in tf.gather_nd for its gradient"
            if node.op == "If" and node.attr["_lower_using_switch_merge"].b and _may_be_lost(node):
                advice = (
                    "it assigns a variable, and its tf.function was traced outside of steps; call "
                    "function.python_function instead"
                )
            if advice:
                raise errors.ConfigError(
                    f"expected operations that DTensor supports, found {node.op} ({node.name}); "
                    f"{advice}"
                )


def _may_be_lost(node: Any) -> bool:
    """Whether an `If` has a result, and assigns a variable; see `_conditions_as_calls`."""
    num_resources = list(node.attr["Tin"].list.type).count(tf.resource.as_datatype_enum)
    num_read_only = len(node.attr["_read_only_resource_inputs"].list.i)
    return bool(node.attr["Tout"].list.type) and num_read_only < num_resources


def _source(name: str, by_name: Mapping[str, Any]) -> str | None:
    """Returns the operation whose output a node takes; None for an argument of a function."""
    return getattr(by_name[name.partition(":")[0]], "op", None)


def _rank(name: str, by_name: Mapping[str, Any]) -> int | None:
    """Returns the rank of a node's output; None if it is unknown."""
    base, _, rest = name.partition(":")
    shapes = by_name[base].attr["_output_shapes"].list.shape
    index = int(rest.rpartition(":")[2] or 0)
    is_known = index < len(shapes) and not shapes[index].unknown_rank
    return len(shapes[index].dim) if is_known else None


def _check_slice(node: Any, by_name: Mapping[str, Any]) -> str | None:
    """Returns what to use instead of a slice that DTensor does not support; None for others."""
    bounds: list[Any] = [by_name.get(name.partition(":")[0]) for name in node.input[1:4]]
    if any(getattr(x, "op", None) != "Const" for x in bounds):
        return (
            "use tf.slice or tf.gather if the bounds of a slice are tensors, and tf.gather_nd in "
            "place of a tf.gather with batch_dims or axis, whose gradient has such a slice"
        )
    begin, _, strides = (tf.make_ndarray(x.attr["value"].tensor) for x in bounds)
    if (strides < 0).any():
        return "use tf.gather instead of a slice with a negative step"
    new_axis, shrink, ellipsis = (
        node.attr[f"{name}_mask"].i for name in ("new_axis", "shrink_axis", "ellipsis")
    )
    # DTensor returns wrong results for a new axis before an ellipsis, or beside omitted dimensions.
    if ellipsis:
        is_short = bool(new_axis & (ellipsis - 1))
    else:
        num_named = len(begin) - new_axis.bit_count()
        shape = node.attr["_output_shapes"].list.shape[0]
        rank = len(shape.dim) - new_axis.bit_count() + shrink.bit_count()
        is_short = bool(new_axis) and num_named < rank
    return "use tf.expand_dims instead of tf.newaxis" if is_short else None


def _move_captures(function: tf.types.experimental.ConcreteFunction, mesh: dtensor.Mesh) -> None:
    """Copies the constants that a step captures to every device of the mesh."""
    function.set_external_captures(
        [
            x
            if x.dtype in (tf.resource, tf.variant) or x.device == dtensor.device_name()
            else layouts.spread(x, dtensor.Layout.replicated(mesh, x.shape.rank))
            for x in function.captured_inputs
        ]
    )
