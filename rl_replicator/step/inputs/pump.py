"""The pump: a thread that moves rows from datasets into the queue of an input."""

import contextlib
import functools
import itertools
import queue as queues
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator.step import output_arrays
from rl_replicator.step.inputs import contract

# TensorFlow's GPU kernels take many int32 arguments, such as shapes, from the host's memory. The
# other dtypes have no GPU kernels.
_HOST_TYPES = (tf.int32, tf.string, tf.variant, tf.resource)

_names = itertools.count()
# Makes each pump's row numbers different from those of all other pumps.
_queues = itertools.count()


class DeviceRows:
    """Keeps the tensors of rows on the replicas' devices while the rows wait in the input's queue.

    The pump puts a row's tensors on the devices. Only the tensors that stay on the host go into the
    queue, with the row's number, by which a step that takes the entry gets the others. Thus copies
    to a device overlap with earlier steps. Without devices, the queue holds all tensors.

    Attributes:
      entry_specs: specs of the tensors of a row's entry in the queue.
    """

    def __init__(self, spec: Any, num_replicas: int, devices: Sequence[str] = ()):
        """Holds nothing yet.

        Args:
          spec: spec of one replica's part of a row, a nest.
          num_replicas: number of replicas of this process.
          devices: device of each replica; () to keep all tensors in the queue.
        """
        flat = tf.nest.flatten(spec, expand_composites=True)
        self._width = len(flat)
        self._held = _held(spec) if devices else []
        self._dtypes = [flat[i].dtype for i in self._held]
        self._rest = [i for i in range(self._width) if i not in self._held]
        # Each replica's tensors are in a TensorFlow map, identified by its name on its device.
        self._maps = {f"input_rows_{next(_names)}": device for device in devices}
        number = [tf.TensorSpec([], tf.int64)] if self._held else []
        self.entry_specs: tuple[Any, ...] = (*number, *[flat[i] for i in self._rest] * num_replicas)

    def put(self, number: tf.Tensor, row: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Traced: puts a row on the devices.

        Args:
          number: int64 scalar that no other row has.
          row: flat tensors of all replicas, one after the other.

        Returns:
          The tensors to put into the queue; see `entry_specs`.
        """
        if not self._held:
            return list(row)
        parts = [row[i : i + self._width] for i in range(0, len(row), self._width)]
        places = tf.range(len(self._held))
        puts = []
        for (name, device), part in zip(self._maps.items(), parts, strict=True):
            held = [part[i] for i in self._held]
            with tf.device(device):
                puts.append(
                    tf.raw_ops.MapStage(
                        key=number,
                        indices=places,
                        values=held,
                        dtypes=self._dtypes,
                        shared_name=name,
                    )
                )
        with tf.control_dependencies(puts):  # A step that takes the entry must not wait for them.
            number = tf.identity(number)
        return [number, *(part[i] for part in parts for i in self._rest)]

    def get(self, entry: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Traced: takes a row from the devices.

        Args:
          entry: the tensors returned by `put`.

        Returns:
          The row's flat tensors.
        """
        if not self._held:
            return list(entry)
        number, *rest = entry
        on_host = iter(rest)
        places = tf.range(len(self._held))
        row: list[Any] = []
        for name, device in self._maps.items():
            with tf.device(device):
                on_device = iter(
                    tf.raw_ops.MapUnstage(
                        key=number, indices=places, dtypes=self._dtypes, shared_name=name
                    )
                )
            row += [next(on_device if i in self._held else on_host) for i in range(self._width)]
        return row

    def clear(self) -> None:
        """Frees all rows. The entries in the queue become useless."""
        for name, device in self._maps.items() if self._held else ():
            with tf.init_scope(), tf.device(device):
                tf.raw_ops.MapClear(dtypes=self._dtypes, shared_name=name)


def _held(spec: Any) -> list[int]:
    """Returns the indices of an element's flat tensors that are kept on the device."""
    places = []
    place = 0
    for leaf in tf.nest.flatten(spec):
        if isinstance(leaf, tf.TensorSpec):
            if leaf.dtype not in _HOST_TYPES:
                places.append(place)
            place += 1
        else:  # A ragged or sparse tensor: some of its parts are used on the host.
            place += len(tf.nest.flatten(leaf, expand_composites=True))
    return places


class Mover:
    """Moves rows from datasets into queues. Each input has one, so that it is traced only once.

    Attributes:
      rows: puts the rows on the replicas' devices.
    """

    def __init__(
        self,
        sources: Sequence[tf.data.Dataset],
        num_replicas: int,
        rows: DeviceRows,
        row_status: Callable[[list[Any]], tuple[Any, list[Any]]],
    ):
        """Reads nothing yet.

        Args:
          sources: one dataset for all replicas of this process, or one for each.
          num_replicas: number of replicas of this process.
          rows: see the class.
          row_status: returns the status of a row and the elements that `step_fn` receives, given
            each replica's element of the dataset.
        """
        self.rows = rows
        self._row_status = row_status
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
        status, elements = self._row_status(
            [iterators[i % len(iterators)].get_next() for i in range(self._num_replicas)]
        )
        row = [x for x in tf.nest.flatten(elements, expand_composites=True) if x is not None]
        # A row that arrives after the end must not stay on the devices: no step would take it.
        with tf.control_dependencies(row):
            is_closed = tf.raw_ops.QueueIsClosedV2(handle=queue)
        check = tf.debugging.Assert(tf.logical_not(is_closed), ["the queue is closed"])
        with tf.control_dependencies([check]):
            entry = [status, *self.rows.put(number, row)]
        with tf.control_dependencies([tf.raw_ops.QueueEnqueueV2(handle=queue, components=entry)]):
            return number + 1


class Pump:
    """A thread that moves rows into a queue, and afterwards marks with the final status.

    It does not refer to its input, so that an unused input can be freed, and the pump closed, while
    the pump waits.

    Attributes:
      error: the error that ended the rows; set before the queue receives the status FAILED.
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
        # Of this type, because the garbage collector may interrupt one `put` by another.
        self._closing: queues.SimpleQueue[bool | None] = queues.SimpleQueue()
        with tf.init_scope(), tf.device("/cpu:0"):
            self._stop = tf.queue.FIFOQueue(1, [tf.bool])

    def start(self, position: int) -> None:
        """Starts the thread.

        Args:
          position: number of rows of the data to skip.
        """
        for target, arguments in ((self._run, (position,)), (self._close, ())):
            name = "input-pump" if arguments else "input-closer"
            threading.Thread(target=target, args=arguments, name=name, daemon=True).start()

    def close(self) -> None:
        """Closes the queue. The thread ends soon after, even if it waits for data."""
        with tf.init_scope():  # A graph may be under construction.
            self._queue.close(cancel_pending_enqueues=True)
        self._closing.put(None)

    def discard(self) -> None:
        """Closes the queue and frees the rows in it; no step may be running."""
        self.close()
        self._mover.rows.clear()
        self._closing.put(False)

    def free(self) -> None:
        """Does what `discard` does, but later; callable from a finalizer."""
        self._closing.put(True)

    def _close(self) -> None:
        # In a thread of its own, because a Reverb sampler takes seconds to notice, and a finalizer
        # runs wherever the garbage collector does: a graph may be under construction there.
        clears: bool | None = None
        while clears is None:
            clears = self._closing.get()
            # Without `cancel_pending_enqueues`, closing again would be an error.
            self._queue.close(cancel_pending_enqueues=True)
            if clears:
                self._mover.rows.clear()
            self._stop.close(cancel_pending_enqueues=True)

    def _run(self, position: int) -> None:
        try:
            status = self._move(position)
            # Repeated, because a call that takes a mark may fail before it reports the status.
            while not self._queue.is_closed():
                mark(self._queue, self._mover.rows.entry_specs, status)
        finally:
            self._queue.close(cancel_pending_enqueues=True)  # No step may wait for this thread.

    def _move(self, position: int) -> int:
        """Moves all rows, and returns their final status."""
        try:
            self._mover.move(self._queue, self._stop, position)
        except tf.errors.OutOfRangeError:
            return contract.END
        except Exception as error:  # The caller of the step must see any error.
            if not self._queue.is_closed():  # Otherwise closing has caused the error.
                error.__context__ = None  # Its traceback would keep the iterators alive.
                self.error = error.with_traceback(None)
        return contract.FAILED


def mark(queue: tf.queue.FIFOQueue, specs: Sequence[Any], status: int) -> None:
    """Puts a status without a row into a queue, as soon as the queue has room.

    Args:
      queue: see `Mover.move`.
      specs: `DeviceRows.entry_specs`.
      status: the status for the step that takes the entry.
    """
    empty = [output_arrays.blank(tf.TensorSpec([0], s.dtype)) for s in specs]
    with contextlib.suppress(tf.errors.CancelledError):  # Closed in the meantime.
        queue.enqueue([status, *empty])
