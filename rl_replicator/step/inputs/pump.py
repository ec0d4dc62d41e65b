"""What moves rows from datasets into the queue of an input."""

import contextlib
import functools
import queue as queues
import threading
import traceback
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rl_replicator.step.inputs import contract


class Mover:
    """Moves rows from datasets into queues. One for each input, so that it is traced once.

    Attributes:
      specs: the specs of the tensors of a row, those of all replicas.
    """

    def __init__(
        self,
        sources: Sequence[tf.data.Dataset],
        num_replicas: int,
        specs: Sequence[tf.TensorSpec],
    ):
        """Reads nothing yet.

        Args:
          sources: one dataset for all replicas of this process, or one for each.
          num_replicas: number of replicas of this process.
          specs: see the class.
        """
        self.specs = specs
        self._sources = sources
        self._num_replicas = num_replicas

    def move(self, queue: tf.queue.FIFOQueue, position: int) -> None:
        """Moves rows until the data ends or the queue is closed.

        Args:
          queue: takes a status and the tensors of a row.
          position: number of rows of the data to leave out.
        """
        used = position * self._num_replicas // len(self._sources)
        # Nothing else refers to the iterators, so that they are freed here and not in the thread
        # in which the garbage collector runs: that may have to wait, for a generator of the user's
        # that waits for something itself.
        self._compiled(queue.queue_ref, *[iter(source.skip(used)) for source in self._sources])

    @functools.cached_property
    def _compiled(self) -> tf.types.experimental.ConcreteFunction:
        def move(queue: tf.Tensor, *iterators: Any) -> Any:
            def body(_: Any) -> Any:
                row = self._row(iterators)
                with tf.control_dependencies(
                    [tf.raw_ops.QueueEnqueueV2(handle=queue, components=row)]
                ):
                    return tf.equal(row[0], contract.ELEMENT)

            return tf.while_loop(
                lambda more: more, body, [tf.constant(True)], parallel_iterations=1
            )

        specs = [tf.data.IteratorSpec(source.element_spec) for source in self._sources]
        return tf.function(move, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.resource), *specs
        )

    def _row(self, iterators: Sequence[Any]) -> list[Any]:
        """Traced: reads the next entry of the queue."""
        row = [iterators[i % len(iterators)].get_next() for i in range(self._num_replicas)]
        return [tf.constant(contract.ELEMENT), *tf.nest.flatten(row, expand_composites=True)]


class Pump:
    """A thread that moves rows into a queue until the data ends or the queue is closed.

    Knows nothing of the input that it works for, so that an input that nobody uses any more can be
    freed, and its queue closed, while the pump waits.

    Attributes:
      error: what ended the pump; set before the queue receives the status FAILED.
    """

    def __init__(self, mover: Mover, queue: tf.queue.FIFOQueue):
        """Reads nothing yet.

        Args:
          mover: moves the rows.
          queue: takes a status and the tensors of a row.
        """
        self.error: Exception | None = None
        self._mover = mover
        self._queue = queue

    def start(self, position: int) -> None:
        """Starts the thread.

        Args:
          position: number of rows of the data to leave out.
        """
        _closing()  # Not first in a finalizer, which must not start a thread.
        threading.Thread(target=self._run, args=(position,), name="input-pump", daemon=True).start()

    def _run(self, position: int) -> None:
        try:
            self._mover.move(self._queue, position)
        except tf.errors.OutOfRangeError:
            mark(self._queue, self._mover.specs, contract.END)
        except Exception as error:  # Of any kind: the caller of the step must see it.
            _forget_locals(error)
            if not self._queue.is_closed():
                self.error = error
                mark(self._queue, self._mover.specs, contract.FAILED)


def _forget_locals(error: BaseException | None) -> None:
    """Clears the local variables that the tracebacks of an error would keep."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def mark(queue: tf.queue.FIFOQueue, specs: Sequence[tf.TensorSpec], status: int) -> None:
    """Puts a status without a row into a queue, as soon as the queue has room.

    Args:
      queue: takes a status and the tensors of a row.
      specs: the specs of the tensors of a row.
      status: what the step that takes the entry will find.
    """
    empty = [tf.zeros([0], s.dtype) for s in specs]
    with contextlib.suppress(tf.errors.CancelledError):  # Closed in the meantime.
        queue.enqueue([status, *empty])


def close_later(queue: tf.queue.FIFOQueue) -> None:
    """Closes a queue in another thread; callable from a finalizer.

    A finalizer runs wherever the garbage collector does: a graph may be under construction there,
    which would take the operation, and a lock held that starting a thread needs.
    """
    _closing().put(queue)


@functools.cache
def _closing() -> "queues.SimpleQueue[tf.queue.FIFOQueue]":
    """Returns what takes the queues to close; a finalizer may interrupt another one in its use."""
    closing: queues.SimpleQueue[tf.queue.FIFOQueue] = queues.SimpleQueue()

    def work() -> None:
        while True:
            queue = closing.get()
            queue.close(cancel_pending_enqueues=True)
            del queue  # Or it would stay until the next one comes.

    threading.Thread(target=work, name="input-closer", daemon=True).start()
    return closing
