"""Compares the replicas' copies of variables during training."""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator import collectives, errors
from rl_replicator.collectives import call_log
from rl_replicator.graphs import assignments
from rl_replicator.layers import statistics
from rl_replicator.step import host as host_lib

# Most differences appear early, so these steps are checked as well.
_EARLY = (1, 10, 100)


class ReplicaCheck:
    """Finds variables whose copies differ between replicas, by checksums of their bits.

    Copies stay equal only if every replica assigns the same values. A value that depends on the
    replica's own data must be reduced first. TensorFlow does not check this, and only the first
    replica's copy would be saved.
    """

    def __init__(
        self, host: host_lib.Host, variables: Sequence[tf.Variable], num_steps_between: int
    ):
        """Traces the exchange of checksums between processes; compares nothing yet.

        Args:
          host: the step's host.
          variables: the variables of the step, each with the copies of all local replicas.
          num_steps_between: number of steps from one comparison to the next.
        """
        self._variables = [v for v in variables if not _may_differ(v) and v.dtype != tf.string]
        self._registry = host.registry
        self._num_steps_between = num_steps_between
        self._num_steps = 0

        @tf.function(autograph=False)
        def gather(sums: tf.Tensor) -> tf.Tensor:  # [variables, local replicas]
            call_log.begin()
            own = tf.unstack(sums, axis=1)
            return tf.transpose(host.run(lambda _, mine: collectives.all_gather(mine), own)[0])

        shape = [len(self._variables), host.num_local_replicas]
        self._gather: Callable[[tf.Tensor], Any] = (
            gather.get_concrete_function(tf.TensorSpec(shape, tf.int64))
            if host.num_processes > 1
            else np.asarray
        )

    def count(self, num_steps: int) -> None:
        """Counts steps that were taken, and compares the copies if a comparison is due.

        Args:
          num_steps: number of steps of the last call; the same in all processes.

        Raises:
          ReplicasDiffer: in all processes, if copies differ; names the first such variable.
        """
        before, self._num_steps = self._num_steps, self._num_steps + num_steps
        if not self._variables or not self._is_due(before):
            return
        own = [[_checksum(copy) for copy in assignments.copies(v)] for v in self._variables]
        sums = np.asarray(self._gather(tf.constant(own, tf.int64)))  # [variables, replicas]
        differs = sums != sums[:, :1]
        if differs.any():
            place = int(differs.any(axis=1).argmax())
            variable, replica = self._variables[place], int(differs[place].argmax())
            raise errors.ReplicasDiffer(
                f"expected equal copies of every variable, but {variable.name!r} "
                f"{tuple(variable.shape)} differs between replica 0 and replica {replica} after "
                f"{self._num_steps} steps; {self._remedy(variable)}"
            )

    def _remedy(self, variable: tf.Variable) -> str:
        scope = variable.name.rpartition("/")[0]
        if any(other.name.startswith(f"{scope}/ema_dw/") for other in self._registry.created()):
            return "use rr.VectorQuantizerEMA in place of snt.nets.VectorQuantizerEMA"
        return (
            "assign only what is equal on all replicas, such as rr.collectives.all_mean(value) or "
            "the updates of replicator.wrap_optimizer, or create a moving statistic with "
            "trainable=False and aggregation=tf.VariableAggregation.MEAN"
        )

    def _is_due(self, before: int) -> bool:
        size = self._num_steps_between
        return before // size < self._num_steps // size or any(
            before < early <= self._num_steps for early in _EARLY
        )


def _checksum(variable: tf.Variable) -> int:
    return zlib.crc32(variable.read_value().numpy().tobytes())


def _may_differ(variable: tf.Variable) -> bool:
    """Whether the variable's copies may differ: parts of a sum, or a moving statistic."""
    return variable.aggregation == tf.VariableAggregation.SUM or statistics.averaged(variable)
