"""The contract of all replicators, and the simplest one."""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator import errors, gradients, variables
from rl_replicator import inputs as inputs_lib
from rl_replicator import step as step_lib


@dataclasses.dataclass(frozen=True)
class PerReplica:
    """One tensor from each replica: a leaf of a step's outputs on several replicas."""

    values: tuple[Any, ...]


class Replicator(abc.ABC):
    """Runs one step function on every replica, with equal variables everywhere.

    The replicas begin equal and stay equal because each applies the same averaged gradients: this
    is what `wrap_optimizer` is for. After Buchlovsky et al. 2019, TF-Replicator
    (arXiv:1902.00465).
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.registry = variables.Registry()

    @property
    def num_replicas(self) -> int:
        return self.strategy.num_replicas_in_sync

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Where variables are created: models, optimizers, counters, random generators."""
        with self.strategy.scope(), self.registry.recording():
            yield

    def wrap_optimizer(self, optimizer: Any, max_global_norm: float | None = None) -> Any:
        """Makes `optimizer.apply` average the gradients over the replicas first.

        Args:
          optimizer: a Sonnet optimizer, created in `scope()`.
          max_global_norm: clips the averaged gradients of one `apply` to this global norm.

        Returns:
          The same object, changed in place; so checkpoints do not depend on the replicator.

        Raises:
          ConfigError: not a Sonnet optimizer, or wrapped before.
        """
        return gradients.wrap(optimizer, self.num_replicas, max_global_norm)

    def build_optimizer(self, optimizer: Any, parameters: Sequence[tf.Variable]) -> None:
        """Creates the optimizer's slots now, and not in its first `apply`.

        A checkpoint can only be restored into variables that exist.
        """
        with self.scope():
            gradients.build(optimizer, parameters)

    def make_inputs(self, input_fn: inputs_lib.InputFn) -> inputs_lib.Inputs:
        """Calls `input_fn(InputContext)`, whose result feeds all replicas of this process.

        Args:
          input_fn: returns a `tf.data.Dataset` of per-replica batches (each replica takes an
            element of its own), or a zero-argument callable, run inside every replica.
        """
        context = inputs_lib.InputContext(num_replicas=self.num_replicas)
        return inputs_lib.make(input_fn, context)

    def replicate(
        self,
        step_fn: Callable[[Any], Any],
        inputs: inputs_lib.Inputs,
        steps_per_call: int | None = None,
    ) -> step_lib.ReplicatedStep:
        """Compiles `step_fn` for all replicas.

        Args:
          step_fn: takes one element of the input, returns a nest of tensors (or None).
          inputs: from `make_inputs`; several steps may share it.
          steps_per_call: None for one step per call; K for K steps in one compiled call, with
            every output stacked to [K, ...].

        Raises:
          ConfigError: the step touches a variable that was created outside `scope()`.
        """
        return step_lib.ReplicatedStep(self, step_fn, inputs, steps_per_call)

    def reduce(self, op: str, outputs: Any) -> Any:
        """Reduces outputs over the replicas, on the host.

        Args:
          op: "mean", "sum", "min" or "max".
          outputs: a step's outputs or a part of them.

        Returns:
          The same nest of NumPy arrays, with the shapes of one replica's outputs. The mean of
          integers is float32.
        """
        if op not in _HOST_REDUCTIONS:
            raise errors.ConfigError(
                f"expected an op out of {', '.join(_HOST_REDUCTIONS)}, got {op!r}; use one of them"
            )
        return _map_arrays(lambda x: _HOST_REDUCTIONS[op](x), self.gather(outputs))

    def gather(self, outputs: Any) -> Any:
        """Stacks outputs over the replicas, on the host.

        Returns:
          The same nest of NumPy arrays, each of shape [num_replicas] + one replica's shape.
        """
        results = self.local_results(outputs)
        flat = [tf.nest.flatten(result) for result in results]
        stacked = [_stack(leaves) for leaves in zip(*flat, strict=True)]
        return tf.nest.pack_sequence_as(results[0], stacked)

    @abc.abstractmethod
    def local_results(self, outputs: Any) -> tuple[Any, ...]:
        """The outputs of each replica of this process, in the order of the replicas."""

    @abc.abstractmethod
    def run(self, function: Callable[[int], None]) -> None:
        """Traces `function(replica)` once for each replica, on its device. For `ReplicatedStep`."""

    @abc.abstractmethod
    def join(self, results: list[Any]) -> Any:
        """The inverse of `local_results`. For `ReplicatedStep`."""


class SingleDeviceReplicator(Replicator):
    """One replica on the default device, without a distribution strategy in the way."""

    def __init__(self) -> None:
        super().__init__(tf.distribute.get_strategy())

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        with self.registry.recording():
            yield

    def local_results(self, outputs: Any) -> tuple[Any, ...]:
        return (outputs,)

    def run(self, function: Callable[[int], None]) -> None:
        function(0)

    def join(self, results: list[Any]) -> Any:
        return results[0]


_HOST_REDUCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda x: x.mean(axis=0, dtype=np.float32 if x.dtype.kind in "iub" else None),
    "sum": lambda x: x.sum(axis=0, dtype=x.dtype),
    "min": lambda x: x.min(axis=0),
    "max": lambda x: x.max(axis=0),
}


def _stack(leaves: Sequence[Any]) -> np.ndarray | None:
    if leaves[0] is None:
        return None
    # NumPy alone cannot read a bfloat16 scalar tensor.
    return np.stack([x.numpy() if isinstance(x, tf.Tensor) else x for x in leaves])


def _map_arrays(function: Callable[[np.ndarray], np.ndarray], nest: Any) -> Any:
    return tf.nest.map_structure(lambda x: None if x is None else function(x), nest)
