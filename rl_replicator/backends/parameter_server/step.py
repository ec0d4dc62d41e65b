"""The step of an asynchronous replicator: run by whichever worker is free, ahead of its caller."""

import collections
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from rl_replicator.backends.parameter_server import inputs as asynchronous_inputs
from rl_replicator.backends.parameter_server import scheduler, staleness
from rl_replicator.step import compiled
from rl_replicator.step import inputs as inputs_lib

if TYPE_CHECKING:
    from rl_replicator.backends.parameter_server.replicator import MultiWorkerAsyncReplicator

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
        replicator: "MultiWorkerAsyncReplicator",
        schedule: scheduler.Scheduler,
        version: tf.Variable,
        step_fn: Callable[[Any], Any],
        inputs: asynchronous_inputs.WorkerInputs,
        steps_per_call: int | None,
    ):
        """Compiles.

        Args:
          replicator: whose workers take the steps.
          schedule: hands out the calls of all its steps.
          version: counts the updates of all its steps, on a parameter server.
          step_fn: see `Replicator.replicate`.
          inputs: likewise.
          steps_per_call: likewise.
        """
        self._schedule = schedule
        self._version = version
        self._most_ahead = 2 * replicator.num_workers
        self._num_begun = 0
        # Steps that are done and not returned yet: how many, and their outputs.
        self._done: collections.deque[tuple[int, list[tf.Tensor]]] = collections.deque()
        self._done_staleness: collections.deque[int] = collections.deque()
        self._staleness = staleness.Staleness()
        self._error: Exception | None = None
        super().__init__(replicator, step_fn, inputs, steps_per_call)

    def __call__(self) -> Any:
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
                    return self._replicator.join(self._unflatten(flat))
                self._begin_more()
                if not self._num_begun and self._inputs.is_over(self._schedule.given_up):
                    self._drop_done()
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

    def _end(self, generation: int, results: Any, error: Exception | None) -> None:
        """Takes what came of a call; called by the scheduler."""
        self._num_begun -= 1
        if error is not None:
            self._error = self._error or error
        if results is None:
            return
        packed = zip(tf.unstack(results), self._dtypes, strict=True)
        head, stale, *outputs = [tf.io.parse_tensor(x, dtype) for x, dtype in packed]
        status, worker = head.numpy().tolist()
        if status == inputs_lib.END:
            self._inputs.note_end(worker, generation)
        if len(stale):
            self._done.append((len(stale), outputs))
            self._done_staleness.extend(stale.numpy().tolist())

    def _drop_done(self) -> None:
        """What is left at the end of the data does not make a whole call."""
        self._done.clear()
        self._done_staleness.clear()

    def _pop(self) -> list[tf.Tensor]:
        """The outputs of the oldest steps that make a whole call."""
        count = self.steps_per_call or 1
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

    def _compile(self) -> Callable[..., list[tf.Tensor]]:
        """Returns status, worker and the staleness of each step in one tensor; then the outputs."""
        one_step = tf.function(self._one_step, autograph=False).get_concrete_function(
            *self._inputs.specs
        )
        self._replicator.registry.check(one_step)
        count = self.steps_per_call

        @tf.function(autograph=False)
        def call(*sources):
            with self._inputs.reading(*sources) as worker:
                status, *results = (
                    self._once(one_step) if count is None else self._loop(one_step, count)
                )
            head = tf.stack([tf.cast(status, tf.int64), worker])
            # In one tensor, because every one that is fetched is a message of its own.
            return tf.stack([tf.io.serialize_tensor(x) for x in (head, *results)])

        self._dtypes = [tf.int64, *(x.dtype for x in one_step.outputs)]
        return call.get_concrete_function(*self._inputs.argument_specs)

    def _one_step(self, *flat: tf.Tensor) -> list[tf.Tensor]:
        """Returns the step's staleness, and its outputs."""
        # In one graph with the step, so that these two and the variables' own operations are put in
        # order on the parameter server, and not by messages to and fro.
        before = self._version.read_value()
        with tf.control_dependencies([before]):
            outputs = super()._one_step(*flat)
        with tf.control_dependencies(_operations_on_variables()):
            # Reads and adds in one, so that no update is counted twice or not at all.
            now = tf.raw_ops.ResourceCountUpTo(
                resource=self._version.handle, limit=_MOST_UPDATES, T=tf.int64
            )
        return [now - before, *outputs]

    def _once(self, one_step: tf.types.experimental.ConcreteFunction) -> list[tf.Tensor]:
        """Returns the status, the staleness of each step that was taken, and its outputs."""
        status, flat = self._inputs.take()

        def step():
            stale, *outputs = self._step(one_step, flat)
            return [stale[None], *outputs]

        def no_step():
            _, *blanks = compiled.blanks(one_step, [])
            return [tf.zeros([0], tf.int64), *blanks]

        return [status, *tf.cond(tf.equal(status, inputs_lib.ELEMENT), compiled, no_step)]

    def _loop(
        self, one_step: tf.types.experimental.ConcreteFunction, count: int
    ) -> list[tf.Tensor]:
        """The same for steps until one has no input, at most `count`; all stacked."""
        arrays = [
            tf.TensorArray(x.dtype, size=count, element_shape=x.shape) for x in one_step.outputs
        ]

        def body(i, _, arrays):
            status, flat = self._inputs.take()

            def step():
                outputs = self._step(one_step, flat)
                return [array.write(i, x) for array, x in zip(arrays, outputs, strict=True)]

            is_there = tf.equal(status, inputs_lib.ELEMENT)
            arrays = tf.cond(is_there, compiled, lambda: arrays)
            return i + tf.cast(is_there, tf.int32), status, arrays

        def goes_on(i, status, _):
            return tf.logical_and(i < count, tf.equal(status, inputs_lib.ELEMENT))

        start = [tf.constant(0), tf.constant(inputs_lib.ELEMENT), arrays]
        done, status, arrays = tf.while_loop(goes_on, body, start, parallel_iterations=1)
        stacked = tf.cond(
            done > 0,
            lambda: [array.gather(tf.range(done)) for array in arrays],
            lambda: compiled.blanks(one_step, [0]),
        )
        return [status, *stacked]


def _operations_on_variables() -> list[tf.Operation]:
    """Those of the graph that is being traced."""
    graph = tf.compat.v1.get_default_graph()
    return [
        operation
        for operation in graph.get_operations()
        if any(tensor.dtype == tf.resource for tensor in operation.inputs)
    ]
