"""The pump: a thread that moves rows from datasets into the queue of an input."""

import contextlib
import functools
import itertools
import logging
import queue as queues
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator.step import output_arrays
from rl_replicator.step.inputs import contract, device_rows

_LOG = logging.getLogger(__name__)

# Makes each pump's row numbers different from those of all other pumps.
_queues = itertools.count()


class Mover:
    """Moves rows from datasets into queues. Each input has one, so that it is traced only once.

    Attributes:
      entry_specs: specs of the tensors that follow the status in an entry of the queue.
    """

    def __init__(
        self,
        sources: Sequence[tf.data.Dataset],
        num_replicas: int,
        rows: device_rows.DeviceRows,
    ):
        """Reads nothing yet.

        Args:
          sources: one dataset for all replicas of this process, or one for each.
          num_replicas: number of replicas of this process.
          rows: puts the rows on the replicas' devices.
        """
        self.entry_specs = rows.entry_specs
        self._rows = rows
        self._sources = sources
        self._num_replicas = num_replicas

    def move(self, queue: tf.queue.FIFOQueue, stop: tf.queue.FIFOQueue, position: int) -> None:
        """Moves rows until the data ends or a queue is closed.

        Args:
          queue: takes entries: a status, and the result of `DeviceRows.put`.
          stop: an empty queue; closing it ends the wait for data.
          position: number of rows of the data to skip.
        """
        used = position * self._num_replicas // len(self._sources)
        # Nothing else refers to the iterators, so they are freed here, and not by the garbage
        # collector in an arbitrary thread: freeing one may have to wait for a user's generator,
        # which may be waiting itself.
        self._compiled(
            queue.queue_ref,
            stop.queue_ref,
            tf.constant(next(_queues) << 32, tf.int64),
            *[iter(source.skip(used)) for source in self._sources],
        )

    @functools.cached_property
    def _compiled(self) -> tf.types.experimental.ConcreteFunction:
        def move(queue: tf.Tensor, stop: tf.Tensor, first: tf.Tensor, *iterators: Any) -> Any:
            # On the CPU, even if the rows go to GPUs: there, the pump would wait for the steps.
            with tf.device("/cpu:0"):
                # Runs in parallel with the loop, and fails once `stop` is closed. TensorFlow then
                # cancels the rest of this call, which also ends a dataset's wait.
                tf.raw_ops.QueueDequeueV2(handle=stop, component_types=[tf.bool])
                return tf.while_loop(
                    lambda _: True,
                    functools.partial(self._move_row, queue, iterators),
                    [first],
                    parallel_iterations=1,
                )

        specs = [tf.data.IteratorSpec(source.element_spec) for source in self._sources]
        return tf.function(move, autograph=False).get_concrete_function(
            *[tf.TensorSpec([], tf.resource)] * 2, tf.TensorSpec([], tf.int64), *specs
        )

    def _move_row(self, queue: tf.Tensor, iterators: Sequence[Any], number: tf.Tensor) -> tf.Tensor:
        """Traced: moves a row, and returns the number of the next."""
        status, row = self._row(iterators)
        # A row that arrives after the end must not stay on the devices: no step would take it.
        with tf.control_dependencies(row):
            is_closed = tf.raw_ops.QueueIsClosedV2(handle=queue)
        check = tf.debugging.Assert(tf.logical_not(is_closed), ["the queue is closed"])
        with tf.control_dependencies([check]):
            entry = [status, *self._rows.put(number, row)]
        with tf.control_dependencies([tf.raw_ops.QueueEnqueueV2(handle=queue, components=entry)]):
            return number + 1

    def _row(self, iterators: Sequence[Any]) -> tuple[tf.Tensor, list[Any]]:
        """Traced: reads the next row. Returns its status and its flat tensors."""
        row = [iterators[i % len(iterators)].get_next() for i in range(self._num_replicas)]
        flat = tf.nest.flatten(row, expand_composites=True)
        return tf.constant(contract.ELEMENT), [x for x in flat if x is not None]


class Pump:
    """A thread that moves rows into a queue, and afterwards marks with the final status.

    It does not refer to its input, so that an unused input can be freed, and the pump closed, while
    the pump waits.

    Attributes:
      error: the error that ended the rows; set before the queue receives the status FAILED, or is
        closed because it cannot receive one.
    """

    def __init__(self, mover: Mover, queue: tf.queue.FIFOQueue):
        """Reads nothing yet.

        Args:
          mover: moves the rows.
          queue: see `Mover.move`.
        """
        self.error: Exception | None = None
        self._mover = mover
        self._queue = queue
        with tf.init_scope(), tf.device("/cpu:0"):
            self._stop = tf.queue.FIFOQueue(1, [tf.bool])

    def start(self, position: int) -> None:
        """Starts the thread.

        Args:
          position: number of rows of the data to skip.
        """
        _closing()  # Starts its thread now, because a finalizer must not.
        threading.Thread(target=self._run, args=(position,), name="input-pump", daemon=True).start()

    def close(self) -> None:
        """Closes the queue. The thread ends soon after, even if it waits for data."""
        with tf.init_scope():  # A graph may be under construction.
            self._queue.close(cancel_pending_enqueues=True)
        # In another thread, because a Reverb sampler takes seconds to notice. Without
        # `cancel_pending_enqueues`, closing again would be an error.
        threading.Thread(
            target=self._stop.close, args=(True,), name="input-closer", daemon=True
        ).start()

    def _run(self, position: int) -> None:
        try:
            status = self._move(position)
            # Repeated, because a call that takes a mark may fail before it reports the status.
            while not self._queue.is_closed():
                mark(self._queue, self._mover.entry_specs, status)
        except Exception as error:
            self._note(error)
        finally:
            self._queue.close(cancel_pending_enqueues=True)  # No step may wait for this thread.

    def _move(self, position: int) -> int:
        """Moves all rows, and returns their final status."""
        try:
            self._mover.move(self._queue, self._stop, position)
        except tf.errors.OutOfRangeError:
            return contract.END
        except Exception as error:  # The caller of the step must see any error.
            _forget_locals(error)
            self._note(error)
        return contract.FAILED

    def _note(self, error: Exception) -> None:
        if not self._queue.is_closed():  # Otherwise closing has caused the error.
            self.error = error


def _forget_locals(error: BaseException | None) -> None:
    """Clears the local variables that the tracebacks of an error would keep alive."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def mark(queue: tf.queue.FIFOQueue, specs: Sequence[Any], status: int) -> None:
    """Puts a status without a row into a queue, as soon as the queue has room.

    Args:
      queue: see `Mover.move`.
      specs: `Mover.entry_specs`.
      status: the status for the step that takes the entry.
    """
    empty = [output_arrays.blank(tf.TensorSpec([0], s.dtype)) for s in specs]
    with contextlib.suppress(tf.errors.CancelledError):  # Closed in the meantime.
        queue.enqueue([status, *empty])


def close_later(pump: Pump, rows: device_rows.DeviceRows) -> None:
    """Closes a pump, and frees its rows, in another thread; callable from a finalizer.

    A finalizer runs wherever the garbage collector does. A graph that is under construction there
    would record the operation, or a lock that is needed to start a thread may be held.
    """

    def close() -> None:
        pump.close()
        rows.clear()

    _closing().put(close)


@functools.cache
def _closing() -> "queues.SimpleQueue[Callable[[], None]]":
    """Returns the queue of closing calls; reentrant, as finalizers may interrupt each other."""
    closing: queues.SimpleQueue[Callable[[], None]] = queues.SimpleQueue()

    def work() -> None:
        while True:
            close = closing.get()
            try:
                close()
            except Exception:  # The other inputs must still be closed.
                _LOG.exception("an unused input could not be closed")
            del close  # Otherwise its pump and rows would stay alive until the next one arrives.

    threading.Thread(target=work, name="inputs-closer", daemon=True).start()
    return closing
