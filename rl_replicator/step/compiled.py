"""The compiled step: `step_fn` on every replica, once or several times in one call."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, TypeAlias

import sonnet as snt
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.collectives import call_log
from rl_replicator.graphs import leaves
from rl_replicator.layers import batch_norm, statistics
from rl_replicator.optimizers import wrapping
from rl_replicator.step import host as host_lib
from rl_replicator.step import (
    output_arrays,
    random_ops,
    replica_check,
    scaled_losses,
    variable_registry,
)
from rl_replicator.step import results as results_lib
from rl_replicator.step.inputs import contract

_Function: TypeAlias = tf.types.experimental.ConcreteFunction

# A large prime, so that the seeds of processes, replicas and runs with similar seeds differ.
_SEED_STRIDE = 1_299_709
_REPLICA_STRIDE = 15_485_863


class ReplicatedStep:
    """A compiled step; call it to take the step. Created by `Replicator.replicate`.

    Attributes:
      steps_per_call: number of steps in one call; None for one step whose outputs are not stacked.
      jit_compile: True if XLA compiles each step into one kernel.
    """

    jit_compile: bool | None = None

    def __init__(
        self,
        host: host_lib.Host,
        step_fn: Callable[[Any], Any],
        inputs: contract.Inputs,
        steps_per_call: int | None,
        check_every: int | None = None,
    ):
        """Compiles the step.

        Args:
          host: the host on which the step runs.
          step_fn: see `Replicator.replicate`.
          inputs: see `Replicator.replicate`.
          steps_per_call: see `Replicator.replicate`.
          check_every: see `Replicator.replicate`.
        """
        self._host = host
        self.steps_per_call = steps_per_call
        if steps_per_call is not None:
            remedy = "use None for one step whose outputs are not stacked"
            self.steps_per_call = errors.check_count("steps_per_call", steps_per_call, remedy)
        self._inputs = inputs
        self._step_fn = step_fn  # Keeps alive the variables that the compiled function uses.
        self._converted = leaves.converted(step_fn)
        self._template: Any = None
        self._traced = self._trace_step()
        self._compiled = self._compile(self._traced)
        self._check = self._make_check(check_every)

    def __call__(self) -> Any:
        """Takes the step (or `steps_per_call` of them), after all calls made before.

        Returns:
          The nest that `step_fn` returned. Its leaves are tensors on a single replica, and
          `PerReplica` on several. With `steps_per_call=K`, every tensor has a leading axis [K], in
          the order of the steps. If the data ends after k of the K steps, 0 < k < K, the axis is
          [k], and the next call raises `EndOfData`.

        Raises:
          StepCancelled: if `cancel` was called. The variables are as after the last whole step;
            with `steps_per_call`, the error has the outputs of the steps that this call had taken.
          EndOfData: if the data ends before the first step of the call.
          ConfigError: if an output has different shapes in the steps of the call (the steps have
            been taken nevertheless); or if called inside another step or a `tf.function`.
        """
        if not tf.executing_eagerly():
            raise errors.ConfigError(
                "expected a call of a step outside of other steps and of tf.functions, found one "
                "inside; call the step's own function there"
            )
        with self._host.call_order.turn():
            return self._call()

    def _call(self) -> Any:
        """Takes the step, or `steps_per_call` of them; see `__call__`."""
        self._inputs.start()
        try:
            head, *flat = self._compiled(*self._inputs.arguments)
            status, num_steps = head.numpy().tolist()
        except tf.errors.OpError as error:
            failure = self._inputs.failure(output_arrays.failure(error))
            failure = self._host.failure(failure)
            if failure is error:
                raise
            raise failure from None
        if status != contract.ELEMENT:
            end = self._inputs.ended(status)
            if num_steps and isinstance(end, errors.StepCancelled):
                end.outputs = results_lib.join(self._unflatten(flat))
            if status != contract.END or not num_steps:
                raise end
        if self._check is not None:
            self._check.count(num_steps)
        return results_lib.join(self._unflatten(flat))

    @property
    def template(self) -> Any:
        """The nest that `step_fn` has returned while it was traced, on the first replica."""
        return self._template

    def assigned_variables(self) -> list[tf.Variable]:
        """Returns the variables that the step assigns, in the order of their creation.

        Training changes these variables, so a checkpoint has to contain them. Variables that the
        step only reads are left out, as are the replicator's own.
        """
        return self._host.registry.assigned_by(self._traced)

    def cancel(self) -> None:
        """Ends the call that waits for input, or else the next call. Callable from any thread.

        One `cancel` makes one call raise `StepCancelled`: the call that is waiting, or the first
        that needs more rows than are ready. Later calls work again. If several steps share their
        inputs, only one call raises.
        """
        self._inputs.cancel()

    def begin(self) -> "futures.Future[Any]":
        """Takes the step in the background, so that Python can work while the devices do.

        All calls of a replicator's steps, direct ones included, run one at a time, in the order in
        which they were made. At most two calls wait in the background: a third `begin` blocks until
        one has ended. When the program exits, a call that waits for data is cancelled.

        Returns:
          A future of the call's return value or exception.

        Raises:
          ConfigError: if called in a function that `Replicator.begin` runs.
        """
        return self._host.call_order.begin(self._call, self.cancel)

    def _trace_step(self) -> _Function:
        """Traces a single step, from a row's tensors to the outputs of all replicas."""
        # The graph reads the statistics of every model, so they must stay alive even if nothing
        # else refers to the model.
        self._statistics = statistics.among(self._host.registry.created())
        one_step = tf.function(
            self._one_step, autograph=False, jit_compile=self.jit_compile
        ).get_concrete_function(*self._inputs.specs)
        self._host.registry.check(one_step)
        wrapping.check_wrapped(one_step)
        random_ops.check(one_step)
        return one_step

    def _make_check(self, check_every: int | None) -> replica_check.ReplicaCheck | None:
        if check_every is None or self._host.num_replicas == 1:
            return None
        used = self._host.registry.used_by(self._traced)
        return replica_check.ReplicaCheck(self._host, used, check_every)

    def _compile(self, one_step: _Function) -> Callable[..., list[tf.Tensor]]:
        """Compiles a call.

        Returns:
          A function of `Inputs.arguments` that returns what `_steps` returns.
        """

        @tf.function(autograph=False)
        def call(*arguments: Any) -> list[tf.Tensor]:
            return self._steps(one_step, arguments)

        return call.get_concrete_function(*self._inputs.argument_specs)

    def _one_step(self, *row: tf.Tensor) -> list[tf.Tensor]:
        """Returns the tensors of all replicas in one list: first all of replica 0, and so on."""
        parts = self._inputs.split(row)

        raised: list[Exception] = []
        graph = tf.compat.v1.get_default_graph()
        seed = graph.seed

        def replica(index: int, part: Any) -> Any:
            graph.seed = _replica_seed(seed, self._host, index)
            try:
                return self._replica_step(self._inputs.element(part))
            except Exception as error:
                raised.append(error)
                raise

        with self._tracing() as calls:
            try:
                # Makes the values of Sonnet's initializers known while the step is traced.
                run = snt.distribute.create_variables_eagerly(self._host.run)
                results = run(replica, parts)
            except Exception as error:
                # A difference between the replicas' collectives explains more than TensorFlow's
                # error. But if the step itself has raised, the other replicas' calls are missing.
                is_own = any(error is known for known in raised)
                calls.check(self._host.num_traces, has_ended=not is_own)
                raise
        for index, result in enumerate(results[: self._host.num_traces]):
            calls.record(index, results_lib.describe(result))
        calls.check(self._host.num_traces)
        self._host.check_trace(calls)
        self._template = results[0]
        return [x for result in results for x in tf.nest.flatten(result) if x is not None]

    @contextlib.contextmanager
    def _tracing(self) -> Iterator[call_log.CallLog]:
        """Records the collectives of the step that is traced inside the context, and checks it.

        Yields:
          The log of the collectives.

        Raises:
          ConfigError: see `scaled_losses` and `variable_registry.lifted`.
        """
        calls = call_log.begin()
        with (
            self._host.scope(),
            scaled_losses.noted(),
            tf.variable_creator_scope(variable_registry.lifted),
        ):
            yield calls
            scaled_losses.check(calls, self._host.num_replicas)

    def _replica_step(self, element: Any) -> Any:
        """Traced on each replica: `step_fn`, then the updates that are due at the end of a step."""
        with statistics.snapshot(self._host.registry.created()):
            results = leaves.as_tensors(self._converted(element), "from step_fn")
            batch_norm.average_declared(self._host.registry.created())
        log = call_log.current()
        for finish in () if log is None else log.at_end:
            finish()
        return results

    def _steps(
        self, one_step: _Function, arguments: Sequence[Any], most: tf.Tensor | None = None
    ) -> list[tf.Tensor]:
        """Traced: takes the steps of one call, until there is no row for one.

        Args:
          one_step: the result of `_trace_step`.
          arguments: the arguments of the inputs.
          most: int32 scalar, the number of steps to take, at most `steps_per_call`; None for all.
            Without `steps_per_call`, one step is taken.

        Returns:
          [2] int32, the status of the last row and the number of steps taken; then the outputs.
        """
        if self.steps_per_call is None:
            status, outputs = self._single(one_step, arguments)
            num_steps = tf.cast(tf.equal(status, contract.ELEMENT), tf.int32)
        else:
            count = self.steps_per_call
            most = tf.constant(count) if most is None else most
            status, num_steps, outputs = self._loop(one_step, arguments, count, most)
        with tf.device("/cpu:0"):
            return [tf.stack([status, num_steps]), *outputs]

    def _single(
        self, one_step: _Function, arguments: Sequence[Any]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Traced: takes one step. Its outputs are meaningless unless there was a row."""
        status, entry = self._take(arguments)
        outputs = tf.cond(
            tf.equal(status, contract.ELEMENT),
            lambda: self._step(one_step, entry),
            lambda: [output_arrays.blank(x) for x in one_step.outputs],
        )
        return status, outputs or []

    def _loop(
        self, one_step: _Function, arguments: Sequence[Any], count: int, most: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Traced: takes up to `most` steps; stacks each output to [number of steps taken, ...].

        Args:
          one_step: the result of `_trace_step`.
          arguments: the arguments of the inputs.
          count: maximum number of steps.
          most: int32 scalar, at most `count`.

        Returns:
          The status of the last row, the number of steps taken, and the outputs.
        """
        outputs = output_arrays.OutputArrays(one_step.outputs)

        def body(taken: tf.Tensor, _: tf.Tensor, arrays: Any) -> Any:
            status, entry = self._take(arguments)

            def step() -> list[tf.TensorArray]:
                return outputs.write(arrays, taken, self._step(one_step, entry))

            has_row = tf.equal(status, contract.ELEMENT)
            arrays = tf.cond(has_row, step, lambda: arrays)
            return taken + tf.cast(has_row, tf.int32), status, arrays or []

        def goes_on(taken: tf.Tensor, status: tf.Tensor, _: Any) -> tf.Tensor:
            return tf.logical_and(taken < most, tf.equal(status, contract.ELEMENT))

        start = [tf.constant(0), tf.constant(contract.ELEMENT), outputs.make(count)]
        taken, status, arrays = tf.while_loop(goes_on, body, start, parallel_iterations=1)
        return status, taken, outputs.stack(arrays or [], taken)

    def _take(self, arguments: Sequence[Any]) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        status, entry = self._inputs.take(*arguments)
        agreed = self._host.agree_on_status(status, self._inputs.combine_statuses)
        self._inputs.keep_unused(status, agreed, entry)
        return agreed, entry

    def _step(self, one_step: _Function, entry: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        self._inputs.advance()
        return one_step(*self._inputs.load(entry)) or []

    def _unflatten(self, flat: list[tf.Tensor]) -> list[Any]:
        rest = iter(flat)
        flat_template = tf.nest.flatten(self._template)
        return [
            tf.nest.pack_sequence_as(
                self._template, [None if leaf is None else next(rest) for leaf in flat_template]
            )
            for _ in range(self._host.num_local_replicas)
        ]


def _replica_seed(seed: int | None, host: host_lib.Host, index: int) -> int | None:
    """Returns the seed of a replica's random operations; None if the step has none.

    TensorFlow seeds an operation with the seed of `tf.random.set_seed` and the operation's position
    in its graph. The position is the same for replicas of different processes. It is also the same
    for replicas of one process inside branches and loop bodies, which are separate graphs that
    inherit the seed of the graph around them.

    Args:
      seed: the seed of the step's graph.
      host: the step's host.
      index: index of the replica in this process.
    """
    if seed is None:
        return None
    return (seed + host.process_index * _SEED_STRIDE + index * _REPLICA_STRIDE) % 2**31
