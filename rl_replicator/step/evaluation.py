"""Finite data, gone through to its last example."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from rl_replicator import collectives, errors
from rl_replicator.step import inputs as inputs_lib

if TYPE_CHECKING:
    from rl_replicator.replicator import Replicator


class EvaluationStep:
    """Sums what a function makes of each batch, over finite data. Made by `make_evaluation`."""

    def __init__(
        self,
        replicator: "Replicator",
        sums_fn: Callable[[Any, tf.Tensor], Any],
        input_fn: inputs_lib.InputFn,
        global_batch_size: int,
    ):
        context = inputs_lib.InputContext(replicator.num_replicas)
        size = context.per_replica_batch_size(global_batch_size)
        self._replicator = replicator
        self._inputs = replicator.make_inputs(input_fn, pad_to=size)
        self._step = replicator.replicate(
            lambda element: collectives.all_sum(sums_fn(*element)), self._inputs
        )

    def __call__(self) -> Any:
        """Goes through the data once, from its beginning.

        Returns:
          The nest that `sums_fn` returns, of NumPy arrays, float64 and int64: the sums over all
          examples; the same in every process.
        """
        totals: list[Any] | None = None
        nest: Any = None
        try:
            while True:
                nest = self._replicator.local_results(self._step())[0]
                new = [_wide(x) for x in tf.nest.flatten(nest)]
                totals = (
                    new if totals is None else [a + b for a, b in zip(totals, new, strict=True)]
                )
        except errors.EndOfData:
            self._inputs.restart()
        if totals is None:
            raise errors.ConfigError(
                "expected data to evaluate on, got none; check what input_fn reads"
            )
        return tf.nest.pack_sequence_as(nest, totals)

    def cancel(self) -> None:
        """Makes the current call, or the next, raise `StepCancelled`. Any thread may call."""
        self._inputs.cancel()


def _wide(x: tf.Tensor) -> np.ndarray:
    """As a type in which a long sum is exact enough."""
    value = x.numpy()
    return value.astype(np.int64 if value.dtype.kind in "iub" else np.float64)
