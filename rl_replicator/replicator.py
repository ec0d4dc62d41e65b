"""The contract of all replicators."""

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import tensorflow as tf

from rl_replicator import collectives
from rl_replicator.optimizers import wrapping
from rl_replicator.step import compiled, evaluation, results
from rl_replicator.step import host as host_lib
from rl_replicator.step import inputs as inputs_lib


class Replicator(abc.ABC):
    """Runs one step function on every replica, with equal variables everywhere.

    The replicas begin equal and stay equal because each applies the same averaged gradients: this
    is what `wrap_optimizer` is for. After Buchlovsky et al. 2019, TF-Replicator
    (arXiv:1902.00465).
    """

    def __init__(self, host: host_lib.Host):
        """Takes the host on which the steps will run."""
        self._host = host

    @classmethod
    @abc.abstractmethod
    def from_text(cls, argument: str) -> "Replicator":
        """Makes a replicator from what follows the colon in `rr.make`.

        Args:
          argument: the text after the colon; "" if there is none.

        Raises:
          ConfigError: if the argument is malformed.
        """

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """TensorFlow's own strategy on the same devices, for libraries that bring their own loop.

        For Keras' `fit`, with the model made and compiled in `strategy.scope()`, and for an
        Estimator's `train_distribute`. Steps of `replicate` use `scope()` instead.

        Raises:
          ConfigError: if TensorFlow has no strategy that does what this replicator does.
        """
        return self._host.strategy

    @property
    def num_replicas(self) -> int:
        """Number of replicas in all processes."""
        return self._host.num_replicas

    @property
    def num_local_replicas(self) -> int:
        """Number of replicas of this process."""
        return self._host.num_local_replicas

    @property
    def num_processes(self) -> int:
        """Number of processes that run the same program, each with its share of the replicas."""
        return self._host.num_processes

    @property
    def process_index(self) -> int:
        """Index of this process, from 0."""
        return self._host.process_index

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints and reports."""
        return self.process_index == 0

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Context in which variables are created: models, optimizers, counters, generators."""
        with self._host.scope():
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
          reduction: "mean", or "sum" where the loss of a replica is its share of the whole; "none"
            for gradients that the step has reduced itself, as it must to call `apply` in `tf.cond`.
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
        check_every: int | None = 1000,
    ) -> compiled.ReplicatedStep:
        """Compiles `step_fn` for all replicas.

        Args:
          step_fn: takes one element of the input, returns a nest of tensors (or None).
          inputs: from `make_inputs`; several steps may share it.
          steps_per_call: None for one step per call; K for K steps in one compiled call, with
            every output stacked to [K, ...].
          check_every: on several replicas, the number of steps after which the copies of all
            variables of the step are compared (and after steps 1, 10 and 100); None for never.
            Variables with SUM or MEAN aggregation are not compared. A comparison takes about as
            long as a step.

        Raises:
          ConfigError: the step touches a variable that was created outside `scope()`; or its
            replicas call different collectives, or call them where not all may come by.
        """
        return compiled.CompiledStep(self._host, step_fn, inputs, steps_per_call, check_every)

    def begin(
        self, function: Callable[[], Any], cancel: Callable[[], None]
    ) -> "futures.Future[Any]":
        """Runs a function that takes steps in the background; see `ReplicatedStep.begin`.

        Args:
          function: takes steps of this replicator, as one call among the others.
          cancel: makes `function` end early; called if the program exits meanwhile.

        Returns:
          A future of what `function` returns or raises.
        """
        return self._host.call_order.begin(function, cancel)

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
        context = inputs_lib.InputContext(self.num_replicas)
        size = context.per_replica_batch_size(global_batch_size)
        inputs = self.make_inputs(input_fn, pad_to=size)
        step = self.replicate(lambda element: collectives.all_sum(sums_fn(*element)), inputs)
        return evaluation.EvaluationStep(self._host, step, inputs)

    def reduce(self, op: str, outputs: Any) -> Any:
        """Reduces outputs over the replicas, on the host.

        Args:
          op: "mean", "sum", "min" or "max".
          outputs: a step's outputs or a part of them.

        Returns:
          The same nest of NumPy arrays, with the shapes of one replica's outputs. The mean of
          integers is float32.
        """
        results.check_op(op)
        return results.reduce(op, self.gather(outputs))

    def gather(self, outputs: Any) -> Any:
        """Stacks outputs over the replicas, on the host.

        Returns:
          The same nest of NumPy arrays, each of shape [num_replicas] + one replica's shape.
        """
        return results.stack(self.local_results(outputs))

    def local_results(self, outputs: Any) -> tuple[Any, ...]:
        """Splits outputs into the result of each replica of this process, in their order."""
        return results.split(outputs, self.num_local_replicas)

    def synchronize(self) -> None:
        """Waits until no step changes variables in the background.

        Only the steps of `MultiWorkerAsyncReplicator` do, which run ahead of their caller.
        """
        self._host.synchronize()
