"""Compares the replicas' copies of variables during training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator import collectives, errors
from rl_replicator.collectives import call_log
from rl_replicator.graphs import assignments
from rl_replicator.layers import statistics
from rl_replicator.step import host as host_lib
from rl_replicator.step import tensor_groups

# Most differences appear early, so these steps are checked as well.
_EARLY = (1, 10, 100)
# Smaller variables of the same kind are packed: tracing the comparison took a third of the time to
# trace a step on two replicas.
_MOST_PACKED = 2**16


class ReplicaCheck:
    """Finds variables whose copies differ between replicas, by exact checksums.

    Copies stay equal only if every replica assigns the same values. A value that depends on the
    replica's own data must be reduced first. TensorFlow does not check this, and only the first
    replica's copy would be saved.
    """

    def __init__(
        self, host: host_lib.Host, variables: Sequence[tf.Variable], num_steps_between: int
    ):
        """Compiles the comparison.

        Args:
          host: the step's host.
          variables: the variables of the step, each with the copies of all local replicas.
          num_steps_between: number of steps from one comparison to the next.
        """
        self._variables = [variable for variable in variables if _is_comparable(variable)]
        self._num_steps_between = num_steps_between
        self._num_steps = 0

        def replica(index: int) -> tf.Tensor:
            return collectives.all_gather(checksums([_read(v, index) for v in self._variables]))

        @tf.function(autograph=False)
        def compare() -> Any:
            with call_log.recording():
                return host.run(replica)[0]

        self._compare = compare.get_concrete_function() if self._variables else None

    def count(self, num_steps: int) -> None:
        """Counts steps that were taken, and compares the copies if a comparison is due.

        Args:
          num_steps: number of steps of the last call; the same in all processes.

        Raises:
          ReplicasDiffer: in all processes, if copies differ; names the first such variable.
        """
        before, self._num_steps = self._num_steps, self._num_steps + num_steps
        if self._compare is None or not self._is_due(before):
            return
        sums = self._compare().numpy()  # [replicas, variables]
        differs = (sums != sums[0]).any(axis=0)
        if differs.any():
            variable = self._variables[int(differs.argmax())]
            replica = int((sums[:, differs.argmax()] != sums[0, differs.argmax()]).argmax())
            raise errors.ReplicasDiffer(
                f"expected equal copies of every variable, but {variable.name!r} "
                f"{tuple(variable.shape)} differs between replica 0 and replica {replica} after "
                f"{self._num_steps} steps; assign only what is equal on all replicas, such as "
                "rr.collectives.all_mean(value), or create a moving statistic with "
                "trainable=False and aggregation=tf.VariableAggregation.MEAN"
            )

    def _is_due(self, before: int) -> bool:
        size = self._num_steps_between
        return before // size < self._num_steps // size or any(
            before < early <= self._num_steps for early in _EARLY
        )


def _read(variable: tf.Variable, index: int) -> tf.Tensor:
    """Reads a replica's copy with a single operation; `read_value` would add two more."""
    handle = assignments.copies(variable)[index].handle
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)


def checksums(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Sums the bits of each tensor, exactly, as integers that wrap around.

    Each number is multiplied by a weight that depends on its position, so the order matters.

    Args:
      values: V tensors of numbers or bools, of any shapes.

    Returns:
      [V] int64. Tensors with the same bits have the same checksum on any device.
    """
    groups = tensor_groups.same_kind(values, _MOST_PACKED)
    axis = tf.constant([1])
    sums = []
    for group in groups:
        first = values[group[0]]
        packed = first if len(group) == 1 else tf.stack([values[index] for index in group])
        rows = tf.reshape(_bits(packed), [len(group), -1])
        weights = _weights(rows.shape[1] or tf.shape(rows, tf.int64)[1])
        sums.append(tf.reduce_sum(tf.cast(rows, tf.int64) * weights, axis))
    order = np.argsort(np.concatenate(groups))
    return tf.gather(tf.concat(sums, axis=0), order)


def _weights(size: int | tf.Tensor) -> tf.Tensor:
    """Returns [size] int64, pseudo-random odd numbers of 31 bits, so that products lose no bits."""
    multiplier = 0x9E3779B97F4A7C15 - 2**64  # 2**64 divided by the golden ratio.
    places = tf.range(1, size + 1, dtype=tf.int64) * multiplier
    mixed = tf.bitwise.bitwise_xor(places, tf.bitwise.right_shift(places, 32)) * multiplier
    return tf.bitwise.bitwise_or(tf.bitwise.right_shift(mixed, 33), 1)


def _bits(x: tf.Tensor) -> tf.Tensor:
    """Returns the bits of numbers as integers of at most 32 bits; bools are unchanged."""
    integers = {1: tf.int8, 2: tf.int16}.get(x.dtype.size, tf.int32)
    return x if x.dtype in (integers, tf.bool) else tf.bitcast(x, integers)


def is_declared(variable: tf.Variable) -> bool:
    """Whether the variable's copies may differ: parts of a sum, or a moving statistic."""
    return variable.aggregation == tf.VariableAggregation.SUM or statistics.averaged(variable)


def _is_comparable(variable: tf.Variable) -> bool:
    dtype = variable.dtype
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex
    return is_number and not is_declared(variable)
