"""Inputs from datasets, through a queue that a step can wait on and still be cancelled.

A pump thread moves rows from the datasets into a small queue, and the compiled step takes them from
there. The queue is what makes an input stoppable: a dataset that waits for data (an empty replay
table, say) cannot be interrupted, but a mark can always be put into the queue. A step that finds a
mark does nothing else.
"""

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.step.inputs import contract


class DatasetInputs(contract.Inputs):
    """The elements of datasets, in order, one for each replica of this process in every step.

    With one dataset, replica i of N receives element k * N + i in step k; with N datasets, element
    k of dataset i. Up to `capacity` rows are read ahead, so what a step receives is that much older
    than the newest data. An incomplete row at the end of finite data is dropped.
    """

    argument_specs = (tf.TensorSpec([], tf.resource),)

    def __init__(
        self,
        datasets: Sequence[tf.data.Dataset],
        num_replicas: int,
        capacity: int = 2,
        spec: Any = None,
    ):
        """Reads nothing yet.

        Args:
          datasets: one for all replicas of this process, or one for each.
          num_replicas: number of replicas of this process.
          capacity: number of rows to read ahead.
          spec: spec of one replica's part of a row; the element spec of the dataset by default.
        """
        super().__init__()
        self._datasets = tuple(datasets)
        self._num_replicas = num_replicas
        self._spec = datasets[0].element_spec if spec is None else spec
        self._width = len(tf.nest.flatten(self._spec, expand_composites=True))
        # Of all replicas, one after the other.
        self.specs = tuple(tf.nest.flatten(self._spec, expand_composites=True)) * num_replicas
        # An entry of the queue: the status, and the tensors of all replicas.
        self._types = [tf.int32, *(s.dtype for s in self.specs)]
        self._capacity = capacity
        self._lock = threading.RLock()  # A signal handler may call `cancel` at any point.
        self._queue = self._new_queue()
        # Holds the entry of a cancelled step, if rows are kept.
        self._unused: tf.queue.FIFOQueue | None = None
        self._pump: threading.Thread | None = None
        self._end: Exception | None = None
        self._error: Exception | None = None
        self._num_cancels = 0  # Marks that no step has met yet.

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self._queue.queue_ref,)

    def take(self, *arguments: Any) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        (queue,) = arguments

        def dequeue() -> list[tf.Tensor]:
            return tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self._types)

        with tf.device("/cpu:0"):
            if self._unused is None:
                status, *row = dequeue()
            else:
                status, *row = tf.cond(self._unused.size() > 0, self._unused.dequeue, dequeue)
        status.set_shape([])
        for tensor, spec in zip(row, self.specs, strict=True):  # A queue does not keep shapes.
            tensor.set_shape(spec.shape)
        return status, row

    def keep_unused_rows(self) -> None:
        if self._unused is None:
            with tf.init_scope(), tf.device("/cpu:0"):
                self._unused = tf.queue.FIFOQueue(1, self._types)

    def keep_unused(self, status: tf.Tensor, agreed: tf.Tensor, row: Sequence[tf.Tensor]) -> None:
        unused = self._unused
        if unused is None:
            return
        is_unused = tf.equal(status, contract.ELEMENT) & tf.equal(agreed, contract.CANCELLED)
        with tf.device("/cpu:0"):
            tf.cond(is_unused, lambda: unused.enqueue([status, *row]), tf.no_op)

    def split(self, row: Sequence[tf.Tensor]) -> list[Any]:
        parts = [row[i * self._width : (i + 1) * self._width] for i in range(self._num_replicas)]
        return [
            tf.nest.pack_sequence_as(self._spec, part, expand_composites=True) for part in parts
        ]

    def element(self, part: Any) -> Any:
        return part

    def go_to(self, position: int) -> None:
        with self._lock:
            if self._pump is not None:
                raise errors.ConfigError(
                    "expected an input from which no step was taken yet, found one in use; "
                    "restore its position before the first step"
                )
            self._position.assign(position)

    def start(self) -> None:
        if self._end is not None:
            raise self._end
        if self._pump is not None:
            return
        with self._lock:
            if self._pump is None:
                self._pump = threading.Thread(
                    target=self._run, args=(self._queue,), name="input-pump", daemon=True
                )
                self._pump.start()

    def restart(self) -> None:
        with self._lock:
            if self._pump is not None:
                # A new queue: rows that were read ahead, and the pump that reads them, go with the
                # old one.
                old, self._queue = self._queue, self._new_queue()
                old.close(cancel_pending_enqueues=True)
                if self._unused is not None and self._unused.size() > 0:
                    self._unused.dequeue()
            self._pump = self._end = self._error = None
            self._position.assign(0)
            for _ in range(self._num_cancels):
                self._mark_soon(contract.CANCELLED)

    def cancel(self) -> None:
        with self._lock:
            self._num_cancels += 1
            self._mark_soon(contract.CANCELLED)

    def ended(self, status: int) -> Exception:
        if status == contract.CANCELLED:
            with self._lock:
                self._num_cancels = max(0, self._num_cancels - 1)
            return contract.cancelled()
        if status == contract.END:
            self._end = errors.EndOfData("the dataset has ended; repeat() it to train on")
        else:
            self._end = self._error or errors.StepFailed(
                "the input of another process failed, see there"
            )
        return self._end

    def failure(self, error: Exception) -> Exception:
        if isinstance(error, tf.errors.OutOfRangeError):
            if self._queue.is_closed():
                return contract.closed()
            if "is closed and has insufficient elements" in str(error):
                return errors.StepCancelled("the input was restarted while the step waited for it")
        return error

    def num_ready(self) -> int:
        return int(self._queue.size())

    def close(self) -> None:
        self._queue.close(cancel_pending_enqueues=True)

    def _new_queue(self) -> tf.queue.FIFOQueue:
        with tf.init_scope(), tf.device("/cpu:0"):
            return tf.queue.FIFOQueue(self._capacity, self._types)

    def _run(self, queue: tf.queue.FIFOQueue) -> None:
        """Moves rows into `queue` until the data ends or the queue is closed."""
        try:
            self._move_rows(queue)
        except tf.errors.OutOfRangeError:
            self._mark(queue, contract.END)
        except Exception as error:  # Of any kind: the caller of the step must see it.
            if not queue.is_closed():
                self._error = error
                self._mark(queue, contract.FAILED)

    def _move_rows(self, queue: tf.queue.FIFOQueue) -> None:
        used = self.position * self._num_replicas // len(self._datasets)
        iterators = [iter(dataset.skip(used)) for dataset in self._datasets]

        @tf.function(autograph=False)
        def pump() -> Any:
            def body(_: Any) -> Any:
                row = self._row(iterators)
                with tf.control_dependencies([queue.enqueue(row)]):
                    return tf.equal(row[0], contract.ELEMENT)

            return tf.while_loop(
                lambda more: more, body, [tf.constant(True)], parallel_iterations=1
            )

        pump()

    def _row(self, iterators: Sequence[Any]) -> list[Any]:
        """Traced by the pump: reads the next entry of the queue."""
        row = [iterators[i % len(iterators)].get_next() for i in range(self._num_replicas)]
        return [tf.constant(contract.ELEMENT), *tf.nest.flatten(row, expand_composites=True)]

    def _mark_soon(self, status: int) -> None:
        # In a thread of its own: a full queue accepts the mark only when a step takes a row.
        threading.Thread(target=self._mark, args=(self._queue, status), daemon=True).start()

    def _mark(self, queue: tf.queue.FIFOQueue, status: int) -> None:
        empty = [tf.zeros([0], s.dtype) for s in self.specs]
        with contextlib.suppress(tf.errors.CancelledError):  # Closed in the meantime.
            queue.enqueue([status, *empty])
