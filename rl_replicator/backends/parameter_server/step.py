"""The step of an asynchronous replicator, which any idle worker runs, ahead of its caller."""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from rl_replicator.backends.parameter_server import inputs as asynchronous_inputs
from rl_replicator.backends.parameter_server import scheduler
from rl_replicator.step import compiled, output_arrays, results
from rl_replicator.step import host as host_lib
from rl_replicator.step import inputs as inputs_lib

_MOST_UPDATES = 2**62


@dataclasses.dataclass(frozen=True)
class Staleness:
    """The staleness of several steps.

    Attributes:
      steps: number of steps.
      total: sum of their staleness.
      max: greatest staleness of a step.
    """

    steps: int = 0
    total: int = 0
    max: int = 0

    @property
    def mean(self) -> float:
        """Mean staleness of a step; 0 without steps."""
        return self.total / self.steps if self.steps else 0.0


class Meter:
    """Measures the staleness of steps on a parameter server, without a reply to the worker."""

    def __init__(self, version: tf.Variable):
        """Creates a variable on the same server as `version`.

        Args:
          version: int64 scalar on a parameter server, the number of updates of all steps.
        """
        self._version = version
        with tf.init_scope(), tf.device(version.device):
            # Number of steps, sum and maximum of their staleness.
            self._counts = tf.Variable([0, 0, 0], dtype=tf.int64, trainable=False, name="staleness")

    def owns(self, variable: tf.Variable) -> bool:
        """Whether it is a variable of the meter."""
        return variable is self._version or variable is self._counts

    def before(self) -> tf.Tensor:
        """Returns the number of updates so far; traced before a step."""
        return self._version.read_value()

    def after(self, before: tf.Tensor) -> None:
        """Counts a step's update, and the updates by others during the step; traced after it.

        Args:
          before: return value of `before`.
        """
        with tf.device(self._version.device):
            # Reads and increments in one operation, so that every update is counted exactly once.
            now = tf.raw_ops.ResourceCountUpTo(
                resource=self._version.handle, limit=_MOST_UPDATES, T=tf.int64
            )
            stale = now - before
            self._counts.assign_add(tf.stack([1, stale, 0]), read_value=False)
            tf.raw_ops.ResourceScatterNdMax(
                ref=self._counts.handle, indices=[[2]], updates=[stale], use_locking=True
            )

    def read(self) -> Staleness:
        """Returns the staleness of all steps so far."""
        return Staleness(*self._counts.numpy().tolist())


class AsynchronousStep(compiled.ReplicatedStep):
    """A step that returns the outputs of workers' calls, in the order in which they finish.

    Each call of the step schedules as many calls on the workers as may run, and then waits for one
    to finish. So the workers run ahead of the caller, by at most two calls per worker. With
    `steps_per_call=K`, the K steps of a result may come from several workers if a worker had to
    wait for data.
    """

    _inputs: asynchronous_inputs.WorkerInputs

    def __init__(
        self,
        host: host_lib.Host,
        schedule: scheduler.CallScheduler,
        version: tf.Variable,
        step_fn: Callable[[Any], Any],
        inputs: asynchronous_inputs.WorkerInputs,
        steps_per_call: int | None,
    ):
        """Compiles the step.

        Args:
          host: host of the replicator.
          schedule: scheduler of the replicator, which all its steps share.
          version: variable on a parameter server that counts the updates of all steps.
          step_fn: see `Replicator.replicate`.
          inputs: see `Replicator.replicate`.
          steps_per_call: see `Replicator.replicate`.
        """
        self._schedule = schedule
        self._most_ahead = 2 * inputs.num_workers
        self._num_begun = 0
        # Finished calls whose steps were not all returned yet: number of steps, and outputs.
        self._done: collections.deque[tuple[int, list[tf.Tensor]]] = collections.deque()
        self._num_done = 0  # Steps in `_done`.
        with host.registry.recording():
            self._meter = Meter(version)
        self._error: Exception | None = None
        self._generation = inputs.generation
        super().__init__(host, step_fn, inputs, steps_per_call)

    def _call(self) -> Any:
        """Returns the next outputs; see `ReplicatedStep`.

        The variables contain the updates of all returned steps, and of up to two calls per worker
        that still run or have not been returned; `Replicator.synchronize` waits for running ones.
        With a `max_staleness` of 0, no call runs between two calls of this method.

        Raises:
          OpError: if a step failed since the last call. Other workers finish their calls, whose
            outputs later calls return.
          StepCancelled: if `cancel` was called. Workers finish their calls, whose outputs later
            calls return.
          EndOfData: if the data of all workers has ended, or the input was closed.
          WorkerLost: if a parameter server or all workers are lost, or if a process is frozen.
        """
        self._inputs.start()
        with self._schedule.news:
            self._drop_old()
            while True:
                self._inputs.raise_marks()
                self._schedule.check()
                if self._error is not None:
                    error, self._error = self._error, None
                    raise output_arrays.failure(error)
                if self._num_done >= (self.steps_per_call or 1):
                    flat = self._pop()
                    if not self._schedule.is_serial:
                        self._begin_more()
                    return results.join(self._unflatten(flat))
                self._begin_more()
                if not self._num_begun and self._inputs.is_over():
                    if self._num_done:  # The last call returns the remaining steps.
                        return results.join(self._unflatten(self._pop()))
                    raise self._inputs.ended(inputs_lib.END)
                self._schedule.wait()

    def assigned_variables(self) -> list[tf.Variable]:
        return [v for v in super().assigned_variables() if not self._meter.owns(v)]

    def staleness(self) -> Staleness:
        """Returns the staleness of all steps taken, including those not yet returned."""
        return self._meter.read()

    def _begin_more(self) -> None:
        updates = self.steps_per_call or 1
        while (
            self._num_begun + self._num_done // updates < self._most_ahead
            and not self._inputs.is_over()
            and self._schedule.admits(updates)
        ):
            # A worker that waits for data ends its call early. If no step may be stale, the next
            # call takes only the remaining steps: any more would come before the steps of other
            # functions, which the caller takes in between.
            most = updates - self._num_done if self._schedule.is_serial else updates
            self._num_begun += 1
            arguments = (tf.constant(most), *self._inputs.arguments)
            self._schedule.begin(self._compiled, arguments, most, self._end)

    def _end(self, packed: Any, error: Exception | None) -> bool:
        """Stores the results or the error of a call; the scheduler's callback."""
        self._num_begun -= 1
        if error is not None:
            self._error = self._error or error
        if packed is None:
            return error is not None
        tensors = zip(tf.unstack(packed), self._dtypes, strict=True)
        head, *outputs = [tf.io.parse_tensor(x, dtype) for x, dtype in tensors]
        status, num_steps, worker = head.numpy().tolist()
        if status == inputs_lib.END:
            self._inputs.note_end(worker)
        if num_steps:
            self._done.append((num_steps, outputs))
            self._num_done += num_steps
        return bool(num_steps)

    def _drop_old(self) -> None:
        """Drops outputs, and an error, from before the last restart of the input."""
        if self._generation != self._inputs.generation:
            self._generation = self._inputs.generation
            self._done.clear()
            self._num_done = 0
            self._error = None

    def _pop(self) -> list[tf.Tensor]:
        """Returns the outputs of the oldest steps: of a whole call, or of all remaining steps."""
        count = min(self.steps_per_call or 1, self._num_done)
        size, rows = 0, []
        while size < count:
            more, outputs = self._done.popleft()
            self._num_done -= more
            size += more
            rows.append(outputs)
        if len(rows) > 1:
            outputs = output_arrays.combine(functools.partial(tf.concat, axis=0), rows)
        if size > count:
            self._num_done += size - count
            self._done.appendleft((size - count, [x[count:] for x in outputs]))
            outputs = [x[:count] for x in outputs]
        return outputs

    def _compile(self, one_step: Any) -> Callable[..., list[tf.Tensor]]:
        """Compiles a call.

        Returns:
          A function of the largest number of steps (int32 scalar) and `Inputs.arguments` that
          returns a tensor of strings: the serialised head ([3] int64: status, number of steps,
          worker) and outputs.
        """

        @tf.function(autograph=False)
        def call(most: tf.Tensor, *arguments: Any) -> tf.Tensor:
            with self._inputs.on_worker() as worker:
                head, *outputs = self._steps(one_step, arguments, most)
            head = tf.concat([tf.cast(head, tf.int64), [worker]], axis=0)
            # Packs all into one tensor, because each fetched tensor costs a message.
            return tf.stack([tf.io.serialize_tensor(x) for x in (head, *outputs)])

        self._dtypes = [tf.int64, *(x.dtype for x in one_step.outputs)]
        most = tf.TensorSpec([], tf.int32)
        return call.get_concrete_function(most, *self._inputs.argument_specs)

    def _one_step(self, *row: tf.Tensor) -> list[tf.Tensor]:
        # In the same graph as the step, so that the parameter server itself orders these two and
        # the operations on variables, without messages.
        before = self._meter.before()
        with tf.control_dependencies([before]):
            outputs = super()._one_step(*row)
        with tf.control_dependencies(_operations_on_variables()):
            self._meter.after(before)
        return outputs


def _operations_on_variables() -> list[tf.Operation]:
    """Returns the operations on variables in the graph that is being traced."""
    graph = tf.compat.v1.get_default_graph()
    return [
        operation
        for operation in graph.get_operations()
        if any(tensor.dtype == tf.resource for tensor in operation.inputs)
    ]
