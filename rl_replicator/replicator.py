"""The base class of all replicators."""

import abc
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import tensorflow as tf

from rl_replicator import collectives, errors
from rl_replicator.checkpoints import pending_work
from rl_replicator.collectives import collectives as collectives_lib
from rl_replicator.graphs import leaves
from rl_replicator.optimizers import gradients, wrapping
from rl_replicator.step import compiled, evaluation, results
from rl_replicator.step import host as host_lib
from rl_replicator.step.inputs import contract, sources


class Replicator(abc.ABC):
    """Runs a step function on every replica, with equal variables on all of them.

    Replicas start equal and stay equal, because `wrap_optimizer` makes all of them apply the same
    averaged gradients. After Buchlovsky et al. 2019, TF-Replicator (arXiv:1902.00465).
    """

    def __init__(self, host: host_lib.Host):
        """Stores the host.

        Args:
          host: runs the steps on this replicator's devices.
        """
        self._host = host
        # The return values of `make_inputs`. `replicate` refuses other inputs, because they may
        # have a different number of elements in a row.
        self._inputs: weakref.WeakSet[contract.Inputs] = weakref.WeakSet()
        self._inputs_lock = threading.Lock()  # The thread that detects losses reads them, too.
        pending_work.register(host)

    @classmethod
    @abc.abstractmethod
    def from_text(cls, argument: str) -> "Replicator":
        """Makes a replicator from the text after the colon in an argument of `rr.make`.

        Args:
          argument: the text; "" if there is no colon.

        Returns:
          The replicator.

        Raises:
          ConfigError: if the text is malformed.
        """

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """TensorFlow's own strategy on the same devices, for libraries with their own loops.

        Use it for Keras' `fit`, with the model created and compiled in `strategy.scope()`, and for
        an Estimator's `train_distribute`. Steps of `replicate` use `scope()` instead.

        Raises:
          ConfigError: if TensorFlow has no strategy that is equivalent to this replicator.
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
        """Number of processes that run the same program, each with some of the replicas."""
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
        """Returns the context in which to create variables: of models, optimizers and counters."""
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
        """Makes `optimizer.apply` reduce the gradients over the replicas. Call it in `scope()`.

        A gradient may be `tf.IndexedSlices`, or None if it is None on all replicas. Clipping, by
        `max_global_norm` or by a Keras optimizer itself, treats `tf.IndexedSlices` like the dense
        gradient: rows with the same index are summed first. Without wrapping, Keras sums them after
        clipping.

        Args:
          optimizer: an optimizer of Sonnet or Keras (where `apply_gradients` works, too), except
            Keras' Nadam, which counts its steps in Python.
          reduction: "mean"; "sum" if the losses of the replicas add up to the whole loss; "none" if
            the step itself reduces the gradients, as it must to call `apply` inside `tf.cond`.
          max_global_norm: global norm to which each `apply` clips the reduced gradients; None for
            no clipping.
          loss_scale: a number, or "dynamic", for gradients that underflow in their dtype. The step
            takes the gradient of `optimizer.scale_loss(loss)`, and `apply` divides by the scale.
          skip_nonfinite: whether to skip the update if a gradient is not finite. A skipped step
            changes no parameter, slot or step count on any replica, nor the moving statistics of
            `CrossReplicaBatchNorm` and of Keras; it does change those of Sonnet's own batch norm.
            `optimizer.num_skipped` counts skipped steps, and `optimizer.report_skipped()` warns
            about them. A "dynamic" loss scale implies `skip_nonfinite`.

        Returns:
          An optimizer of the same library with `apply`; it has the other attributes of `optimizer`.

        Raises:
          ConfigError: if the optimizer is neither Sonnet's nor Keras', if it is Keras' Nadam, if it
            is already wrapped, or if an option is invalid.
        """
        options = gradients.Options(reduction, max_global_norm, loss_scale, skip_nonfinite)
        return wrapping.wrap(optimizer, options)

    def build_optimizer(self, optimizer: Any, parameters: Sequence[tf.Variable]) -> None:
        """Creates the optimizer's slots now, rather than in its first `apply`.

        Call it before restoring a checkpoint, which needs existing variables.

        Args:
          optimizer: a wrapped optimizer.
          parameters: all parameters that the optimizer will update.

        Raises:
          ConfigError: if `parameters` is empty, as for a model that is not built yet, or differs
            from an earlier call.
        """
        with self.scope():
            wrapping.build(optimizer, parameters)

    def make_inputs(
        self,
        input_fn: contract.InputFn,
        per_replica: bool = False,
        pad_to: int | None = None,
        prefetch_to_device: bool = True,
    ) -> contract.Inputs:
        """Makes the input of steps from `input_fn(InputContext)`.

        Args:
          input_fn: returns a `tf.data.Dataset` of per-replica batches, of which each replica takes
            one per step, or a callable without arguments that is traced as a part of the step and
            returns tensors; values that it computes in Python are the same in every step. A dataset
            is read without autotuning unless its options enable it.
          per_replica: whether to call `input_fn` once per replica, so that each has its own
            pipeline, instead of once per process. No effect in `multi_worker_async`.
          pad_to: the per-replica batch size, to use every example of finite data: shorter batches
            are padded to it, and `step_fn` receives `(batch, mask)`; see `PaddedInputs`. None drops
            the last batches of the data if there are too few for all replicas, and refuses a step
            whose batches differ in size.
          prefetch_to_device: whether to copy the next batches to the replicas' GPUs ahead of time,
            so that the copies overlap with steps. This takes the memory of three batches on each
            GPU. int32 and string tensors, and ragged and sparse tensors, stay on the host. No
            effect on CPUs, on TPUs, on a mesh and in `multi_worker_async`.

        Returns:
          The input, which several steps of this replicator may share.

        Raises:
          ConfigError: if `input_fn` returns something else, or data that cannot be padded; in
            `multi_worker_async`, also if the data uses Python code.
        """
        inputs = self._make_inputs(input_fn, per_replica, pad_to, prefetch_to_device)
        with self._inputs_lock:
            self._inputs.add(inputs)
        return inputs

    def _make_inputs(
        self,
        input_fn: contract.InputFn,
        per_replica: bool,
        pad_to: int | None,
        prefetch_to_device: bool,
    ) -> contract.Inputs:
        """Does the work of `make_inputs`. Override it to check or change the inputs."""
        local = self.num_local_replicas if per_replica else 1
        contexts = [
            contract.InputContext(
                num_replicas=self.num_replicas,
                input_pipeline_id=self.process_index * local + i,
                num_input_pipelines=self.num_processes * local,
            )
            for i in range(local)
        ]
        devices = self._host.input_devices if prefetch_to_device else ()
        return sources.make(input_fn, contexts, self.num_local_replicas, pad_to, devices)

    def replicate(
        self,
        step_fn: Callable[[Any], Any],
        inputs: contract.Inputs,
        steps_per_call: int | None = None,
        check_every: int | None = 1000,
    ) -> compiled.ReplicatedStep:
        """Compiles `step_fn` for all replicas.

        Args:
          step_fn: maps an element of the input to a nest of tensors or None.
          inputs: return value of this replicator's `make_inputs`; several steps may share it.
          steps_per_call: None for one step per call; K for K steps in one compiled call, whose
            outputs are stacked to [K, ...]; so each output must have the same shape in all K steps.
          check_every: number of steps between comparisons of all copies of the step's variables,
            which also follow steps 1, 10 and 100; None for no comparisons. Variables with SUM
            aggregation, and moving statistics (floats with `trainable=False` and MEAN aggregation),
            are not compared. A comparison copies the others to the host.

        Returns:
          The compiled step.

        Raises:
          ConfigError: if the step uses a variable that was created outside `scope()`; if it creates
            a variable with an initial value that it computes; if its replicas call different
            collectives or return different nests; if some replicas may skip a collective; if the
            inputs are those of another replicator; or if `check_every` is below 1.
        """
        if check_every is not None:
            errors.check_count("check_every", check_every, "use None to compare nothing")
        if inputs not in self._inputs:
            is_other = isinstance(inputs, contract.Inputs)
            raise errors.ConfigError(
                "expected inputs of this replicator, got "
                f"{'those of another one' if is_other else type(inputs).__name__}; make them with "
                "its make_inputs"
            )
        return self._make_step(step_fn, inputs, steps_per_call, check_every)

    def _make_step(self, *arguments: Any) -> compiled.ReplicatedStep:
        """Compiles a step from the arguments of `replicate`. Override it to use another class."""
        return compiled.ReplicatedStep(self._host, *arguments)

    def begin(
        self, function: Callable[[], Any], cancel: Callable[[], None]
    ) -> "futures.Future[Any]":
        """Runs a function that takes steps in the background; see `ReplicatedStep.begin`.

        Args:
          function: takes steps of this replicator. Runs after all calls that began earlier. In a
            program with several replicators, it must not save or restore checkpoints: that waits
            for the background calls of all replicators, and two such calls would deadlock.
          cancel: makes `function` end early; called if the program exits while it runs.

        Returns:
          A future of the function's return value.

        Raises:
          ConfigError: if `begin` is called from the function of another such call.
        """
        return self._host.call_order.begin(function, cancel)

    def make_evaluation(
        self,
        sums_fn: Callable[[Any, tf.Tensor], Any],
        input_fn: contract.InputFn,
        global_batch_size: int,
    ) -> evaluation.EvaluationStep:
        """Compiles a sum over finite data in which every example counts exactly once.

        Args:
          sums_fn: maps a batch and its mask, [per-replica batch] float32, 1 for an example and 0
            for padding, to a nest of tensors to sum, such as the number of correct predictions and
            `tf.reduce_sum(mask)`.
          input_fn: returns a finite dataset of batches of at most the per-replica batch size. The
            last batch may be smaller, and pipelines may end at different times.
          global_batch_size: number of examples in a batch, over all replicas.

        Returns:
          A function without arguments, each call of which evaluates all data and returns the sums.

        Raises:
          ConfigError: if the replicas do not divide the batch size, or the data cannot be padded or
            never ends.
        """
        context = contract.InputContext(self.num_replicas)
        size = context.per_replica_batch_size(global_batch_size)
        inputs = self.make_inputs(functools.partial(evaluation.finite, input_fn), pad_to=size)

        def step_fn(element: Any) -> Any:
            sums = leaves.as_tensors(sums_fn(*element), "from sums_fn")
            return collectives.all_sum(sums)

        step = self._make_evaluation_step(step_fn, inputs)
        return evaluation.EvaluationStep(self._host, step, inputs)

    def _make_evaluation_step(
        self, step_fn: Callable[[Any], Any], inputs: contract.Inputs
    ) -> compiled.ReplicatedStep:
        """Compiles the step of an evaluation. Override it if `_make_step` uses the wrong class."""
        return self.replicate(step_fn, inputs)

    def reduce(self, op: str, outputs: Any) -> Any:
        """Reduces outputs over the replicas, on the host.

        Args:
          op: "mean", "sum", "min" or "max".
          outputs: outputs of a step, or a part of them.

        Returns:
          The nest, with NumPy arrays of the shapes of one replica's outputs. The mean of integers
          is float32.

        Raises:
          ConfigError: if the op is unknown, an output cannot be reduced (bools have no "sum"), one
            has different shapes on different replicas, or comes from another number of replicas.
        """
        collectives_lib.check_op(op)
        return results.reduce(op, self.gather(outputs))

    def gather(self, outputs: Any) -> Any:
        """Stacks outputs over the replicas, on the host.

        Args:
          outputs: outputs of a step, or a part of them.

        Returns:
          The nest, with NumPy arrays of shape [num_replicas, ...].

        Raises:
          ConfigError: if an output has different shapes on different replicas, or comes from
            another number of replicas.
        """
        return results.stack(self.local_results(outputs))

    def local_results(self, outputs: Any) -> tuple[Any, ...]:
        """Splits outputs into the outputs of each replica of this process.

        Args:
          outputs: outputs of a step, or a part of them.

        Returns:
          The nest of each replica, in the order of the replicas.

        Raises:
          ConfigError: if the outputs come from another number of replicas.
        """
        return results.split(outputs, self.num_local_replicas)

    def synchronize(self) -> None:
        """Waits until no step changes variables in the background; `Checkpointer` does so itself.

        Steps in the background are those of `begin`, and those of `MultiWorkerAsyncReplicator`,
        which run ahead of their caller.
        """
        self._host.synchronize()
