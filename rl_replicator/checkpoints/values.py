"""Values of variables as arrays, whatever holds them: a device, replicas, a mesh, servers."""

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from rl_replicator import errors


def read(name: str, variable: Any) -> np.ndarray:
    """The value; that of this process's first replica where each replica has a copy.

    Copies that are to be averaged, and that no step has averaged, are so now: Keras' moving
    averages after `fit`. Nothing is asked of other processes, so one of several can save alone.

    Raises:
      CheckpointError: the copies are parts of a sum, of which one says nothing.
    """
    copies = _copies(name, variable)
    if isinstance(copies[0], dtensor.DVariable):
        whole = dtensor.Layout.replicated(copies[0].layout.mesh, copies[0].shape.rank)
        return dtensor.relayout(copies[0].read_value(), whole).numpy()
    value = copies[0].numpy()
    if len(copies) > 1 and variable.aggregation == tf.VariableAggregation.MEAN:
        others = [copy.numpy() for copy in copies[1:]]
        if any((other != value).any() for other in others):
            return np.mean([value, *others], axis=0, dtype=value.dtype)
    return value


def write(name: str, variable: Any, value: np.ndarray) -> None:
    """Assigns the value, to the copies of all replicas of this process.

    Raises:
      CheckpointError: as in `read`.
    """
    for copy in _copies(name, variable):
        if isinstance(copy, dtensor.DVariable):
            whole = dtensor.Layout.replicated(copy.layout.mesh, copy.shape.rank)
            copy.assign(dtensor.relayout(dtensor.copy_to_mesh(value, whole), copy.layout))
        else:
            copy.assign(value)


def _copies(name: str, variable: Any) -> tuple[Any, ...]:
    copies = getattr(variable, "values", None)
    if copies is None:
        return (variable,)
    if len(copies) > 1 and variable.aggregation == tf.VariableAggregation.SUM:
        raise errors.CheckpointError(
            f"expected variables that are the same on all replicas, found {name!r}, whose copies "
            "are added up; reduce it in the step with rr.collectives.all_sum"
        )
    return tuple(copies)
