"""The step of an asynchronous replicator, which any idle worker runs, ahead of its caller."""

import collections
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from rl_replicator.backends.parameter_server import inputs as asynchronous_inputs
from rl_replicator.backends.parameter_server import scheduler
from rl_replicator.step import compiled, output_arrays, results
from rl_replicator.step import host as host_lib
from rl_replicator.step.inputs import contract


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
        step_fn: Callable[[Any], Any],
        inputs: asynchronous_inputs.WorkerInputs,
        steps_per_call: int | None,
    ):
        """Compiles the step.

        Args:
          host: host of the replicator.
          schedule: scheduler of the replicator, which all its steps share.
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
                    raise self._inputs.ended(contract.END)
                self._schedule.wait()

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
        if status == contract.END:
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
