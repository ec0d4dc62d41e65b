"""The contract of all replicators."""

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.collectives import call_log
from rl_replicator.optimizers import wrapping
from rl_replicator.step import background, compiled, evaluation, variable_registry
from rl_replicator.step import inputs as inputs_lib

Array = npt.NDArray[Any]


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
        self._strategy = strategy
        self.registry = variable_registry.Registry()

    @classmethod
    @abc.abstractmethod
    def from_text(cls, argument: str) -> "Replicator":
        """Makes one from what follows the colon in `rr.make`; "" if nothing does.

        Raises:
          ConfigError: says what was expected.
        """

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """TensorFlow's own strategy on the same devices, for what brings a loop of its own.

        For Keras' `fit`, with the model made and compiled in `strategy.scope()`, and for an
        Estimator's `train_distribute`. Steps of `replicate` use `scope()` in its place.

        Raises:
          ConfigError: TensorFlow has none that does what this replicator does.
        """
        return self._strategy

    @property
    def num_replicas(self) -> int:
        """All replicas, of all processes."""
        return int(self._strategy.num_replicas_in_sync)

    @property
    def num_local_replicas(self) -> int:
        """Replicas of this process."""
        return self.num_replicas // self.num_processes

    @property
    def num_processes(self) -> int:
        """Processes that run the same program, each with its share of the replicas."""
        return 1

    @property
    def process_index(self) -> int:
        """Which of the processes this is, from 0."""
        return 0

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one to write checkpoints and to report."""
        return self.process_index == 0

    @functools.cached_property
    def background(self) -> background.Background:
        """Where `ReplicatedStep.begin` runs."""
        return background.Background()

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Where variables are created: models, optimizers, counters, random generators."""
        with self._strategy.scope(), self.registry.recording():
            yield

    def wrap_optimizer(
        self,
        optimizer: Any,
        *,
        reduction: str = "mean",
        max_global_norm: float | None = None,
        loss_scale: float | str | None = None,
        skip_nonfinite: bool = False,
    ) -> Any:
        """Makes `optimizer.apply` reduce the gradients over the replicas first. In `scope()`.

        Gradients may be `tf.IndexedSlices` or, on all replicas at the same places, None.

        Args:
          optimizer: of Sonnet or of Keras (`apply_gradients` works too).
          reduction: "mean", or "sum" where the loss of a replica is its share of the whole.
          max_global_norm: clips the reduced gradients of one `apply` to this global norm.
          loss_scale: a number, or "dynamic", for gradients too small for their dtype: the step
            takes the gradient of `optimizer.scale_loss(loss)`, and `apply` divides by the scale.
          skip_nonfinite: a step with a gradient that is not finite changes no parameter, slot or
            optimizer's count on any replica, and the moving statistics of batch norm keep their
            values from before the step. `optimizer.num_skipped` counts these steps,
            `optimizer.report_skipped()` warns of them. "dynamic" implies it.

        Returns:
          The same object, changed in place; so checkpoints do not depend on the replicator.

        Raises:
          ConfigError: neither a Sonnet nor a Keras optimizer, wrapped before, or an option that
            cannot be used.
        """
        options = wrapping.Options(reduction, max_global_norm, loss_scale, skip_nonfinite)
        return wrapping.wrap(optimizer, options)

    def logical_device(self, index: int) -> contextlib.AbstractContextManager[None]:
        """Places a part of the model on one of the devices that a replica spans.

        Inside `step_fn`, what is called in the context runs on that device, and so does its
        gradient. Inside `scope()`, variables made in the context lie there, with their
        optimizer's slots and updates. Everything else, the inputs too, is on logical device 0.

        Raises:
          ConfigError: the replicas of this replicator have no such device.
        """
        if index != 0:
            raise errors.ConfigError(
                f"expected logical device 0, the only one of each replica here, got {index}; use "
                "a replicator with more, such as multi_device:1x2"
            )
        return contextlib.nullcontext()

    def build_optimizer(self, optimizer: Any, parameters: Sequence[tf.Variable]) -> None:
        """Creates the optimizer's slots now, and not in its first `apply`.

        A checkpoint can only be restored into variables that exist.
        """
        with self.scope():
            wrapping.build(optimizer, parameters)

    def make_inputs(
        self,
        input_fn: inputs_lib.InputFn,
        per_replica: bool = False,
        pad_to: int | None = None,
    ) -> inputs_lib.Inputs:
        """Calls `input_fn(InputContext)`, whose result feeds the replicas of this process.

        Args:
          input_fn: returns a `tf.data.Dataset` of per-replica batches (each replica takes an
            element of its own), or a zero-argument callable, run inside every replica.
          per_replica: calls `input_fn` for every replica, which then has a pipeline of its own;
            and not only once for every process.
          pad_to: for finite data that is to be used to its last example: the per-replica batch
            size, to which short batches are filled up. `step_fn` then receives
            `(batch, mask)`; see `PaddedInputs`. Without it an incomplete row is dropped.

        Raises:
          ConfigError: `input_fn` returns something else, or what cannot be padded.
        """
        local = self.num_local_replicas if per_replica else 1
        contexts = [
            inputs_lib.InputContext(
                num_replicas=self.num_replicas,
                input_pipeline_id=self.process_index * local + i,
                num_input_pipelines=self.num_processes * local,
            )
            for i in range(local)
        ]
        inputs = inputs_lib.make(input_fn, contexts, self.num_local_replicas, pad_to)
        return self._accept(inputs)

    def _accept(self, inputs: inputs_lib.Inputs) -> inputs_lib.Inputs:
        """What `make_inputs` returns for these; a replicator may look at them or wrap them."""
        return inputs

    def replicate(
        self,
        step_fn: Callable[[Any], Any],
        inputs: inputs_lib.Inputs,
        steps_per_call: int | None = None,
    ) -> compiled.ReplicatedStep:
        """Compiles `step_fn` for all replicas.

        Args:
          step_fn: takes one element of the input, returns a nest of tensors (or None).
          inputs: from `make_inputs`; several steps may share it.
          steps_per_call: None for one step per call; K for K steps in one compiled call, with
            every output stacked to [K, ...].

        Raises:
          ConfigError: the step touches a variable that was created outside `scope()`; or its
            replicas call different collectives, or call them where not all may come by.
        """
        return compiled.CompiledStep(self, step_fn, inputs, steps_per_call)

    def make_evaluation(
        self,
        sums_fn: Callable[[Any, tf.Tensor], Any],
        input_fn: inputs_lib.InputFn,
        global_batch_size: int,
    ) -> evaluation.EvaluationStep:
        """Compiles a sum over finite data in which every example counts exactly once.

        Args:
          sums_fn: takes a batch and its mask, [per-replica batch] float32, 1 for an example and 0
            for filling; returns a nest of tensors to be added up, such as the number of right
            answers and `tf.reduce_sum(mask)`.
          input_fn: its dataset's batches have at most the per-replica batch size; the last one
            may be short, and pipelines may end at different times.
          global_batch_size: over all replicas.

        Returns:
          A function without arguments; every call goes through the data once.

        Raises:
          ConfigError: the batch does not divide by the replicas, or the data cannot be padded.
        """
        return evaluation.EvaluationStep(self, sums_fn, input_fn, global_batch_size)

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

    def local_results(self, outputs: Any) -> tuple[Any, ...]:
        """The outputs of each replica of this process, in the order of the replicas."""

        def pick(leaf: Any, index: int) -> Any:
            return leaf.values[index] if isinstance(leaf, PerReplica) else leaf

        return tuple(
            tf.nest.map_structure(lambda leaf, i=i: pick(leaf, i), outputs)
            for i in range(self.num_local_replicas)
        )

    @abc.abstractmethod
    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Traces `function(i)` for each replica i of this process, on its device; for steps.

        Returns:
          What they returned, in the order of the replicas.
        """

    def join(self, results: list[Any]) -> Any:
        """The inverse of `local_results`. For `CompiledStep`."""
        if len(results) == 1:
            return results[0]
        return tf.nest.map_structure(
            lambda *xs: None if xs[0] is None else PerReplica(xs), *results
        )

    def agree(self, status: tf.Tensor, agreed: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """Traced by a step, outside of `run`: what the processes make of their inputs' statuses.

        Args:
          status: int32 scalar of this process, see `Inputs.take`.
          agreed: `Inputs.agreed`.

        Returns:
          The same int32 scalar in all processes.
        """
        del agreed
        return status

    def synchronize(self) -> None:  # noqa: B027 - there may be nothing to do.
        """Waits until no step changes variables in the background.

        Only asynchronous steps do so, which run ahead of their caller; see there.
        """

    def check_calls(self, calls: call_log.Trace) -> None:
        """Refuses a traced step whose collectives are not those of the other processes."""
        del calls

    def failure(self, error: Exception) -> Exception:
        """The error to raise for one of TensorFlow's that came out of a step."""
        return error


_HOST_REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "mean": lambda x: x.mean(axis=0, dtype=np.float32 if x.dtype.kind in "iub" else None),
    "sum": lambda x: x.sum(axis=0, dtype=x.dtype),
    "min": lambda x: x.min(axis=0),
    "max": lambda x: x.max(axis=0),
}


def _stack(leaves: Sequence[Any]) -> Array | None:
    if leaves[0] is None:
        return None
    # NumPy alone cannot read a bfloat16 scalar tensor.
    stacked: Array = np.stack([x.numpy() if isinstance(x, tf.Tensor) else x for x in leaves])
    return stacked


def _map_arrays(function: Callable[[Array], Array], nest: Any) -> Any:
    return tf.nest.map_structure(lambda x: None if x is None else function(x), nest)
