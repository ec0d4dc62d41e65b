"""Sums over finite data that count every example exactly once."""

from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.step import compiled, results
from rl_replicator.step import host as host_lib
from rl_replicator.step.inputs import contract


class EvaluationStep:
    """Sums the outputs of a step over finite data. Created by `Replicator.make_evaluation`."""

    def __init__(self, host: host_lib.Host, step: compiled.ReplicatedStep, inputs: contract.Inputs):
        """Reads nothing yet.

        Args:
          host: the step's host.
          step: returns sums over one row, the same on all replicas.
          inputs: padded inputs that only this step uses.
        """
        self._host = host
        self._step = step
        self._inputs = inputs
        self._is_cancelled = False

    def __call__(self) -> Any:
        """Reads the data once, from its beginning, even after an interrupted evaluation.

        Returns:
          The sums over all examples, the same in every process: the nest that `sums_fn` returns,
          with NumPy arrays of float64, int64 and complex128 as leaves. None stays None.

        Raises:
          ConfigError: if there is no data.
          StepCancelled: if `cancel` was called.
          WorkerLost: if an asynchronous worker was lost in the meantime.
        """
        self._host.synchronize()  # Steps of an interrupted evaluation may still be running.
        self._inputs.restart()
        if self._is_cancelled:
            self._inputs.cancel()  # The restart has dropped the first one.
        num_steps = 0
        totals: list[Any] = []
        nest: Any = None
        try:
            while True:
                nest = results.split(self._step(), self._host.num_local_replicas)[0]
                new = [None if x is None else _wide(x) for x in tf.nest.flatten(nest)]
                totals = [*map(_sum, totals, new)] if num_steps else new
                num_steps += 1
        except errors.EndOfData:
            pass
        finally:
            self._is_cancelled = False
        if not num_steps:
            raise errors.ConfigError(
                "expected data to evaluate on, got none; check what input_fn reads"
            )
        if self._inputs.position != num_steps:
            raise errors.WorkerLost(
                "expected every row of the data once, but a worker was lost during the evaluation; "
                "evaluate again"
            )
        return tf.nest.pack_sequence_as(nest, totals)

    def example(self) -> Any:
        """Returns ones in place of sums, in the form in which a call returns them."""

        def ones(x: Any) -> Any:
            if x is None:
                return None
            return _wide(tf.ones([d or 1 for d in (x.shape if x.shape.rank else [])], x.dtype))

        return tf.nest.map_structure(ones, self._step.template)

    def cancel(self) -> None:
        """Makes the current or the next call raise `StepCancelled`. Callable from any thread."""
        self._is_cancelled = True
        self._inputs.cancel()


def finite(input_fn: contract.InputFn, context: contract.InputContext) -> Any:
    """Returns the result of `input_fn`, after checking that it is finite.

    Args:
      input_fn: see `Replicator.make_evaluation`.
      context: the argument of `input_fn`.

    Raises:
      ConfigError: if the result is a dataset known to be endless, as training data often is.
    """
    data: Any = input_fn(context)
    if isinstance(data, tf.data.Dataset) and data.cardinality() == tf.data.INFINITE_CARDINALITY:
        name = getattr(input_fn, "__qualname__", type(input_fn).__name__)
        raise errors.ConfigError(
            f"expected finite data to evaluate on, got an endless dataset from {name}; leave "
            "repeat() out of it, or take() a number of batches"
        )
    return data


def _sum(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    return None if a is None or b is None else a + b


def _wide(x: tf.Tensor) -> np.ndarray:
    """Converts to a dtype in which long sums are sufficiently exact."""
    value = x.numpy()
    wide = {"c": np.complex128, **dict.fromkeys("iub", np.int64)}
    return value.astype(wide.get(value.dtype.kind, np.float64))
