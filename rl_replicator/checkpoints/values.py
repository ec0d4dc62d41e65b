"""Reads and writes the values of variables on any replicator, as NumPy arrays."""

from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator import errors


def read(name: str, variable: Any) -> np.ndarray:
    """Returns the value of a variable, which is that of its first copy in this process.

    Averages the copies of variables with MEAN aggregation that no step has averaged yet, such as
    Keras's moving averages after `fit`. Does not communicate, so one process can save alone.

    Args:
      name: name of the variable, for errors.
      variable: variable on a device, on replicas, on a mesh or on parameter servers.

    Returns:
      An array of the variable's shape and dtype.

    Raises:
      CheckpointError: if the variable has SUM aggregation, so that its value is the sum of copies.
    """
    copies = _copies(name, variable)
    value = copies[0].numpy()
    if isinstance(value, bytes):  # A scalar string. Other scalars are NumPy's, and act as arrays.
        return np.array(value, object)
    if len(copies) > 1 and variable.aggregation == tf.VariableAggregation.MEAN:
        others = [copy.numpy() for copy in copies[1:]]
        if any((other != value).any() for other in others):
            # Sums of float16 may overflow.
            exact = np.float32 if variable.dtype in (tf.float16, tf.bfloat16) else value.dtype
            return np.mean([value, *others], axis=0, dtype=exact).astype(value.dtype)
    return value


def write(name: str, variable: Any, value: np.ndarray) -> None:
    """Assigns a value to all copies of a variable in this process.

    Args:
      name: see `read`.
      variable: see `read`.
      value: array of the variable's shape and dtype.

    Raises:
      CheckpointError: see `read`.
    """
    for copy in _copies(name, variable):
        copy.assign(value)


def _copies(name: str, variable: Any) -> tuple[Any, ...]:
    copies = getattr(variable, "values", None)
    if copies is None:
        return (variable,)
    if len(copies) > 1 and variable.aggregation == tf.VariableAggregation.SUM:
        raise errors.CheckpointError(
            f"expected variables that are equal on all replicas, found {name!r} with SUM "
            "aggregation; reduce it in the step with rr.collectives.all_sum"
        )
    return tuple(copies)
