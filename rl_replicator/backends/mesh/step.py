"""Steps of a mesh: the input is taken on the host, and the compiled step spread by DTensor."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from rl_replicator import errors
from rl_replicator.backends.mesh import layouts
from rl_replicator.step import compiled, host, variable_registry
from rl_replicator.step import inputs as inputs_lib

# DTensor refuses some of these, but only when the step runs, and not in a line; with others it
# crashes or computes nonsense. Found by comparing its results with those of one device.
_REFUSED = {
    **dict.fromkeys(("Case", "StatelessCase"), "use tf.cond"),
    "Where": "use tf.where(condition, x, y) in place of a mask that changes shapes",
    **dict.fromkeys(
        (
            "Multinomial",
            "ParameterizedTruncatedNormal",
            "RandomGammaV3",
            "RandomGamma",
            "RandomPoissonV2",
            "RandomShuffle",
            "RandomStandardNormal",
            "RandomUniform",
            "RandomUniformInt",
            "TruncatedNormal",
        ),
        "use tf.random.stateless_*, a tf.random.Generator made in replicator.scope(), or a "
        "callable input, which runs on the host",
    ),
    **dict.fromkeys(
        ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
        "use rr.CrossReplicaBatchNorm, or fused=False in Keras; the statistics are of all devices",
    ),
    **dict.fromkeys(
        ("EagerPyFunc", "PrintV2", "PyFunc", "PyFuncStateless"),
        "return the tensor from step_fn, or compute it in the input",
    ),
    **dict.fromkeys(
        ("ResourceScatterAdd", "ResourceScatterUpdate", "ResourceSparseApplyAdam"),
        "make sparse gradients dense with tf.convert_to_tensor before optimizer.apply",
    ),
}


class HostCallableInputs(inputs_lib.CallableInputs):
    """A callable that runs on the host before every step, and not on the mesh.

    So it may do what a mesh cannot: draw random numbers, call Python, ask a replay table.
    """

    def __init__(self, inputs: inputs_lib.CallableInputs, registry: variable_registry.Registry):
        """Takes over the function of `inputs`.

        Raises:
          ConfigError: it uses variables of the mesh.
        """
        function = inputs.split(())[0]
        super().__init__([function], 1)
        self._sample = tf.function(lambda: function(), autograph=False).get_concrete_function()
        if any(registry.owns(handle) for handle, _ in self._sample.graph.captures):
            raise errors.ConfigError(
                "expected a callable input without variables of replicator.scope(), because it "
                "runs on the host of the mesh, found one with; use them in step_fn"
            )
        self._spec = self._sample.structured_outputs
        self.specs = tuple(
            tf.TensorSpec(x.shape, x.dtype)
            for x in tf.nest.flatten(self._spec, expand_composites=True)
        )

    def take(self, *arguments: Any) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        status, _ = super().take(*arguments)
        flat = tf.cond(
            tf.equal(status, inputs_lib.ELEMENT),
            lambda: tf.nest.flatten(self._sample(), expand_composites=True),
            lambda: [tf.zeros([d or 0 for d in s.shape], s.dtype) for s in self.specs],
        )
        return status, flat or ()

    def split(self, row: Sequence[tf.Tensor]) -> list[Any]:
        return [tf.nest.pack_sequence_as(self._spec, row, expand_composites=True)]

    def element(self, part: Any) -> Any:
        return part


class MeshHost(host.LocalHost):
    """The devices of a mesh, which together are one replica.

    Attributes:
      mesh: the mesh.
      layouts: say how each variable is split over it.
    """

    def __init__(self, mesh: dtensor.Mesh, rules: layouts.Layouts):
        super().__init__()
        self.mesh = mesh
        self.layouts = rules

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        create = functools.partial(layouts.create, self.layouts)
        with tf.variable_creator_scope(create), super().scope():
            yield

    def failure(self, error: Exception) -> Exception:
        # DTensor finds what it cannot spread only when the step runs for the first time.
        found = re.search(r"error: (?:'tf\.(\w+)' op )?(.*)", str(error))
        if not found or not isinstance(error, tf.errors.UnknownError):
            return error
        operation = found[1] or next(iter(re.findall(r'"tf\.(\w+)"', str(error))), "one")
        reason = found[2].split("Please")[0].strip(" .")
        return errors.ConfigError(
            f"expected operations that DTensor can spread over a mesh, got {operation} ({reason}); "
            "change that part of the step or its layout, or use another replicator"
        )


class MeshStep(compiled.CompiledStep):
    """A step on a mesh.

    Several steps of one call are taken in a loop on the host: measured, DTensor runs a loop in
    the graph no faster, and takes many times longer to compile an unrolled one.
    """

    _host: MeshHost

    def _compile(self, one_step: Any) -> Callable[..., list[tf.Tensor]]:
        self._host.layouts.check_used()
        _check_operations(one_step)
        _move_captures(one_step, self._host.mesh)
        take = tf.function(self._take_and_count, autograph=False).get_concrete_function(
            *self._inputs.argument_specs
        )
        outputs = _Outputs()

        def call(*arguments: Any) -> list[tf.Tensor]:
            rows: list[list[tf.Tensor]] = []
            status = tf.constant(inputs_lib.ELEMENT)
            while len(rows) < (self.steps_per_call or 1):
                status, *row = take(*arguments)
                if int(status) != inputs_lib.ELEMENT:
                    break
                rows.append(outputs.read(one_step(*self._spread(row)) or []))
            head = tf.constant([int(status), len(rows)])
            if self.steps_per_call is None:
                return [head, *(rows[0] if rows else [])]
            return [head, *(tf.stack(column) for column in zip(*rows, strict=True))]

        return call

    def _take_and_count(self, *arguments: Any) -> list[tf.Tensor]:
        status, row = self._take(arguments)
        tf.cond(
            tf.equal(status, inputs_lib.ELEMENT),
            lambda: tf.group(self._inputs.advance()),
            lambda: tf.no_op(),
        )
        return [status, *row]

    def _spread(self, row: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        mesh = self._host.mesh
        _check_batches([x.shape for x in row], layouts.size_of(mesh, layouts.DATA))
        return [layouts.spread(x, layouts.batch_layout(mesh, x.shape.rank)) for x in row]


class _Outputs:
    """Makes plain tensors of what a step returns."""

    def __init__(self) -> None:
        self._layouts: list[dtensor.Layout] | None = None

    def read(self, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if self._layouts is None:  # The same in every step, and slow to find out.
            self._layouts = [dtensor.fetch_layout(x) for x in flat]
        # The copy waits for the step, so that its errors come out here.
        return [
            tf.identity(layouts.whole(x, layout))
            for x, layout in zip(flat, self._layouts, strict=True)
        ]


def check_specs(specs: Sequence[Any], data_size: int) -> None:
    """Refuses inputs that cannot be split over the mesh.

    Args:
      specs: of one element, flat.
      data_size: size of the mesh dimension over which batches are split.

    Raises:
      ConfigError: not a dense tensor, or a first dimension that does not divide.
    """
    for spec in specs:
        if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
            raise errors.ConfigError(
                f"expected dense tensors of known rank as inputs of a mesh, got {spec}; "
                "batch() or pad the data"
            )
    _check_batches([spec.shape for spec in specs], data_size)


def _check_batches(shapes: Sequence[tf.TensorShape], data_size: int) -> None:
    for shape in shapes:
        if shape.rank and shape[0] is not None and shape[0] % data_size:
            raise errors.ConfigError(
                f"expected inputs whose first dimension {layouts.DATA}={data_size} divides, got "
                f"shape {tuple(shape)}; use a batch that is a multiple of {data_size}, and "
                "batch(..., drop_remainder=True) or pad_to for finite data"
            )


def _check_operations(function: tf.types.experimental.ConcreteFunction) -> None:
    """Raises `ConfigError` for a step with operations that a mesh cannot run."""
    definition = function.graph.as_graph_def(add_shapes=True)
    for nodes in (definition.node, *(f.node_def for f in definition.library.function)):
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            advice = _REFUSED.get(node.op)
            if node.op == "StridedSlice":
                advice = _check_slice(node, by_name)
            if advice:
                raise errors.ConfigError(
                    f"expected operations that DTensor can spread over a mesh, found {node.op} "
                    f"({node.name}); {advice}"
                )


def _check_slice(node: Any, by_name: Mapping[str, Any]) -> str | None:
    """What to write in place of a slice that crashes DTensor, or makes it compute nonsense."""
    bounds: list[Any] = [by_name.get(name.partition(":")[0]) for name in node.input[1:4]]
    if any(x is None or x.op != "Const" for x in bounds):
        return "use tf.slice or tf.gather where the bounds of a slice are tensors"
    begin, _, strides = (tf.make_ndarray(x.attr["value"].tensor) for x in bounds)
    if (strides < 0).any():
        return "use tf.gather where a slice goes backwards"
    new_axis, shrink, ellipsis = (
        node.attr[f"{name}_mask"].i for name in ("new_axis", "shrink_axis", "ellipsis")
    )
    if ellipsis:  # A new axis before it does harm.
        is_short = bool(new_axis & (ellipsis - 1))
    else:  # And so does one beside dimensions that are left out.
        num_named = len(begin) - new_axis.bit_count()
        shape = node.attr["_output_shapes"].list.shape[0]
        rank = len(shape.dim) - new_axis.bit_count() + shrink.bit_count()
        is_short = bool(new_axis) and num_named < rank
    return "use tf.expand_dims in place of tf.newaxis" if is_short else None


def _move_captures(function: tf.types.experimental.ConcreteFunction, mesh: dtensor.Mesh) -> None:
    """Copies the constants that the step has picked up outside to every device of the mesh."""
    function.set_external_captures(
        [
            x
            if x.dtype in (tf.resource, tf.variant) or x.device == dtensor.device_name()
            else layouts.spread(x, dtensor.Layout.replicated(mesh, x.shape.rank))
            for x in function.captured_inputs
        ]
    )
