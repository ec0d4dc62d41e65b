"""A replicator with one replica on a mesh of devices: data and model parallelism."""

import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.dtensor.python import api as dtensor_api
from tensorflow.experimental import dtensor

from rl_replicator import errors, replicator
from rl_replicator.backends import devices as devices_lib
from rl_replicator.backends.mesh import layouts
from rl_replicator.backends.mesh import step as mesh_step
from rl_replicator.step.inputs import contract, sources


class MeshReplicator(replicator.Replicator):
    """Distributes each step over a mesh of devices, with TensorFlow's DTensor.

    The mesh is one replica: `num_replicas` is 1, `per_replica_batch_size(B)` is B, `step_fn` sees
    the global batch, and collectives are those of a single replica. So a step that was written for
    one device runs unchanged with the same results, and the statistics of batch normalisation are
    global. Inputs are sharded along their first dimension over the mesh dimension "data", and
    variables as specified by `layouts`. DTensor distributes every operation and adds the
    communication.

    A step on a mesh cannot use the following, among others; it raises an error that names the
    operation.

    - Stateful random ops, such as `tf.random.uniform` and dropout. `tf.random.stateless_uniform`
      works, but draws different numbers than on one device. A `tf.random.Generator` created in
      `scope()` also works, as does noise from a callable input, which runs on the host.
    - Fused batch norm, which Keras' `LayerNormalization` uses unless its epsilon is at most 1e-5;
      `rr.CrossReplicaBatchNorm` and `snt.LayerNorm` work.
    - Python callbacks, printing, sparse updates of variables, masks that change shapes, and sharded
      filters of convolutions.
    - Recurrent layers and `tf.scan`, unless unrolled; most of `tf.linalg`; `tf.roll`, `tf.reverse`.

    Outside of steps, variables are read as plain tensors, so models can be called eagerly.

    Attributes:
      mesh: the mesh.
      layouts: chooses the layouts of variables.
    """

    def __init__(
        self,
        dimensions: Mapping[str, int],
        layouts: Mapping[str, Sequence[str]] | None = None,
        devices: Sequence[str] | None = None,
    ):
        """Makes the mesh.

        Args:
          dimensions: number of devices along each dimension, by its name, such as
            {"data": 2, "model": 2}. Inputs are sharded over "data".
          layouts: for each regular expression on variable names, the mesh dimension over which to
            shard each dimension of the variable, or "none"; see `layouts.Layouts`.
          devices: names of the devices, as many as the product of the dimensions; None to choose
            them.

        Raises:
          ConfigError: if there are not enough devices, or a layout is invalid.
        """
        self.mesh = _make_mesh(dimensions, devices)
        self.layouts = _layouts(self.mesh, layouts or {})
        super().__init__(mesh_step.MeshHost(self.mesh, self.layouts))

    @classmethod
    def from_text(cls, argument: str) -> "MeshReplicator":
        """Parses dimensions and layouts: "data=2,model=2@first/w=none,model@second/w=model,none".

        Args:
          argument: NAME=SIZE pairs, then "@PATTERN=AXIS,AXIS" for each layout.

        Raises:
          ConfigError: if the text is malformed; see also `__init__`.
        """
        sizes, *rules = argument.split("@")
        dimensions = _parse(sizes.split(","), r"(\w+)=([1-9]\d*)", argument)
        specs = _parse(rules, r"(.+)=(\w+(?:,\w+)*)", argument)
        return cls(
            {name: int(size) for name, size in dimensions.items()},
            {pattern: spec.split(",") for pattern, spec in specs.items()},
        )

    @property
    def strategy(self) -> tf.distribute.Strategy:
        raise errors.ConfigError(
            "expected a replicator that has a strategy, for Keras or an Estimator, got a mesh, "
            "which has none; use multi_device, or a step_fn with replicate"
        )

    def _make_inputs(self, *arguments: Any) -> contract.Inputs:
        inputs = super()._make_inputs(*arguments)
        if isinstance(inputs, sources.CallableInputs):
            inputs = mesh_step.HostCallableInputs(inputs, self._host.registry)
        mesh_step.check_specs(inputs.specs, self.mesh)
        return inputs

    def _make_step(self, *arguments: Any) -> mesh_step.MeshStep:
        return mesh_step.MeshStep(self._host, *arguments)


_layouts = layouts.Layouts  # In `__init__`, an argument shadows the module.


# DTensor's graph optimizer that combines all-reduces moves them past assignments of variables. A
# step that assigns a variable and reads it again, as Keras's Adam does, could then read the old
# value.
_COMBINE = "DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"


def _parse(parts: Sequence[str], pattern: str, argument: str) -> dict[str, str]:
    """Parses texts by a pattern with two groups, which are key and value."""
    matches = [re.fullmatch(pattern, part) for part in parts]
    pairs = {match[1]: match[2] for match in matches if match}
    if len(pairs) != len(matches):
        raise errors.ConfigError(
            "expected the dimensions of the mesh, then layouts of variables, as in "
            f"mesh:data=2,model=2@first/w=none,model, got {argument!r}; write name=number pairs "
            "and @pattern=axis,axis, each name once"
        )
    return pairs


def _make_mesh(dimensions: Mapping[str, int], devices: Sequence[str] | None) -> dtensor.Mesh:
    os.environ[_COMBINE] = "0"
    # TensorFlow's hashing of layouts raises this warning, about which users can do nothing.
    warnings.filterwarnings("ignore", "MessageFactory class is deprecated", UserWarning)
    if not dimensions or any(size < 1 for size in dimensions.values()):
        raise errors.ConfigError(
            f"expected dimensions of at least 1 device each, got {dict(dimensions)}; "
            'write {"data": 2, "model": 2}, for example'
        )
    names = devices_lib.choose(math.prod(dimensions.values()), devices)
    # DTensor expects "CPU:0" instead of "/cpu:0".
    plain = [name.strip("/").upper() for name in names]
    # Not earlier: this initialises TensorFlow, after which its devices cannot be configured.
    if dtensor_api._dtensor_singleton is None:
        # DTensor keeps the errors of asynchronous operations: after a failed step, the next reads
        # and steps would fail, too. A step waits for its results anyway.
        dtensor_api.reset_dtensor_device(is_async=False)
    return dtensor.create_mesh(list(dimensions.items()), devices=plain)
