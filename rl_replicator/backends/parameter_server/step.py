"""The step of an asynchronous replicator: run by whichever worker is free, ahead of its caller."""

import collections
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator.backends.parameter_server import inputs as asynchronous_inputs
from rl_replicator.backends.parameter_server import scheduler, staleness
from rl_replicator.step import compiled, results
from rl_replicator.step import host as host_lib
from rl_replicator.step import inputs as inputs_lib

_MOST_UPDATES = 2**62


class AsynchronousStep(compiled.CompiledStep):
    """Returns the outputs of finished calls, in the order in which they finish.

    A call hands out as many more as may run, and then waits for one to finish. So between two calls
    the workers go on, by at most two calls a worker. With `steps_per_call=K`, the K steps of a
    result may come from several workers if a worker had to wait for its data.
    """

    _inputs: asynchronous_inputs.WorkerInputs

    def __init__(
        self,
        host: host_lib.Host,
        schedule: scheduler.Scheduler,
        version: tf.Variable,
        step_fn: Callable[[Any], Any],
        inputs: asynchronous_inputs.WorkerInputs,
        steps_per_call: int | None,
    ):
        """Compiles.

        Args:
          host: of the replicator.
          schedule: hands out the calls of all its steps.
          version: counts the updates of all its steps, on a parameter server.
          step_fn: see `Replicator.replicate`.
          inputs: likewise.
          steps_per_call: likewise.
        """
        self._schedule = schedule
        self._version = version
        self._most_ahead = 2 * inputs.num_workers
        self._num_begun = 0
        # Steps that are done and not returned yet: how many, and their outputs.
        self._done: collections.deque[tuple[int, list[tf.Tensor]]] = collections.deque()
        self._done_staleness: collections.deque[int] = collections.deque()
        self._staleness = staleness.Staleness()
        self._error: Exception | None = None
        self._generation = inputs.generation
        super().__init__(host, step_fn, inputs, steps_per_call)

    def _call(self) -> Any:
        """Returns the next outputs; see `ReplicatedStep`.

        The variables hold the updates of all steps that were returned, and of up to two calls a
        worker that are running or not returned yet; `Replicator.synchronize` waits for the former.
        With a `max_staleness` of 0 nothing runs between two calls, and there are no others.

        Raises:
          OpError: the first error of a step since the last call. Other workers end the calls that
            they have, whose outputs later calls return.
          StepCancelled: `cancel` was called. What the workers are doing goes on, and is returned
            by later calls.
          EndOfData: the data of all workers is used up, or the input was closed.
          WorkerLost: a parameter server, or all workers are gone; or a process is frozen.
        """
        self._inputs.start()
        with self._schedule.news:
            self._drop_old()
            while True:
                self._inputs.raise_marks()
                self._schedule.check()
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                if self._num_done >= (self.steps_per_call or 1):
                    flat = self._pop()
                    if not self._schedule.is_serial:
                        self._begin_more()
                    return results.join(self._unflatten(flat))
                self._begin_more()
                if not self._num_begun and self._inputs.is_over(self._schedule.given_up):
                    if self._num_done:  # The last call takes what is left.
                        return results.join(self._unflatten(self._pop()))
                    raise self._inputs.ended(inputs_lib.END)
                self._schedule.wait()

    def staleness(self) -> staleness.Staleness:
        """How stale the steps were that have been returned so far."""
        with self._schedule.news:
            return self._staleness

    @property
    def _num_done(self) -> int:
        return len(self._done_staleness)

    def _begin_more(self) -> None:
        updates = self.steps_per_call or 1
        while (
            self._num_begun + self._num_done // updates < self._most_ahead
            and not self._inputs.is_over(self._schedule.given_up)
            and self._schedule.admits(updates)
        ):
            self._num_begun += 1
            end = functools.partial(self._end, self._inputs.generation)
            self._schedule.begin(self._compiled, self._inputs.arguments, updates, end)

    def _end(self, generation: int, packed: Any, error: Exception | None) -> None:
        """Takes what came of a call; called by the scheduler."""
        self._num_begun -= 1
        if error is not None:
            self._error = self._error or error
        if packed is None or generation != self._inputs.generation:
            return
        tensors = zip(tf.unstack(packed), self._dtypes, strict=True)
        head, stale, *outputs = [tf.io.parse_tensor(x, dtype) for x, dtype in tensors]
        status, num_steps, worker = head.numpy().tolist()
        if status == inputs_lib.END:
            self._inputs.note_end(worker, generation)
        if num_steps:
            self._done.append((num_steps, outputs))
            self._done_staleness.extend(np.atleast_1d(stale.numpy()).tolist())

    def _drop_old(self) -> None:
        """Drops outputs from before the last restart of the input."""
        if self._generation != self._inputs.generation:
            self._generation = self._inputs.generation
            self._done.clear()
            self._done_staleness.clear()

    def _pop(self) -> list[tf.Tensor]:
        """Returns the outputs of the oldest steps: of a whole call, or of all that are left."""
        count = min(self.steps_per_call or 1, self._num_done)
        values = [self._done_staleness.popleft() for _ in range(count)]
        self._staleness = self._staleness.plus(values)
        size, outputs = self._done.popleft()
        while size < count:
            more, others = self._done.popleft()
            size += more
            outputs = [tf.concat(pair, axis=0) for pair in zip(outputs, others, strict=True)]
        if size > count:
            self._done.appendleft((size - count, [x[count:] for x in outputs]))
            outputs = [x[:count] for x in outputs]
        return outputs

    def _compile(self, one_step: Any) -> Callable[..., list[tf.Tensor]]:
        """Compiles a call.

        Returns:
          A function of `Inputs.arguments` that returns one tensor of strings, the serialized head
          ([3] int64: status, number of steps, worker), staleness and outputs.
        """

        @tf.function(autograph=False)
        def call(*arguments):
            with self._inputs.on_worker() as worker:
                head, *outputs = self._steps(one_step, *arguments)
            head = tf.concat([tf.cast(head, tf.int64), [worker]], axis=0)
            # In one tensor, because every one that is fetched is a message of its own.
            return tf.stack([tf.io.serialize_tensor(x) for x in (head, *outputs)])

        self._dtypes = [tf.int64, *(x.dtype for x in one_step.outputs)]
        return call.get_concrete_function(*self._inputs.argument_specs)

    def _one_step(self, *row: tf.Tensor) -> list[tf.Tensor]:
        """Returns the step's staleness, and its outputs."""
        # In one graph with the step, so that these two and the variables' own operations are put in
        # order on the parameter server, and not by messages to and fro.
        before = self._version.read_value()
        with tf.control_dependencies([before]):
            outputs = super()._one_step(*row)
        with tf.control_dependencies(_operations_on_variables()):
            # Reads and adds in one, so that no update is counted twice or not at all.
            now = tf.raw_ops.ResourceCountUpTo(
                resource=self._version.handle, limit=_MOST_UPDATES, T=tf.int64
            )
        return [now - before, *outputs]


def _operations_on_variables() -> list[tf.Operation]:
    """Those of the graph that is being traced."""
    graph = tf.compat.v1.get_default_graph()
    return [
        operation
        for operation in graph.get_operations()
        if any(tensor.dtype == tf.resource for tensor in operation.inputs)
    ]
