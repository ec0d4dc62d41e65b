"""Inputs from datasets, through a queue that allows cancelling a step that waits for data.

A pump (`pump.py`) moves rows from the datasets into a small queue, and the compiled step takes them
from there. A dataset that waits for data, such as an empty replay table, cannot be interrupted. But
a mark, which is an entry without a row, can always be put into the queue. A step that takes a mark
does nothing else.
"""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.step.inputs import contract, device_rows
from rl_replicator.step.inputs import pump as pump_lib

_READ_AHEAD = 2  # Rows in the queue; one more waits for a place in it.


class DatasetInputs(contract.Inputs):
    """The elements of datasets, in order, one for each replica of this process in every step.

    With one dataset, replica i of N receives element k * N + i in step k; with N datasets, element
    k of dataset i. Two rows are read ahead, so a step's data is older than the newest data by as
    many rows. An incomplete row at the end of finite data is dropped. Reading ends when the input
    and all its steps are no longer referenced.
    """

    argument_specs = (tf.TensorSpec([], tf.resource),)

    def __init__(
        self,
        datasets: Sequence[tf.data.Dataset],
        num_replicas: int,
        spec: Any = None,
        devices: Sequence[str] = (),
    ):
        """Reads nothing yet.

        Args:
          datasets: one for all replicas of this process, or one for each.
          num_replicas: number of replicas of this process.
          spec: spec of one replica's part of a row; the element spec of the dataset by default.
          devices: device of each replica, to which the rows that are read ahead are copied; () to
            keep them on the host.
        """
        super().__init__()
        self._datasets = tuple(datasets)
        self._num_replicas = num_replicas
        self._spec = datasets[0].element_spec if spec is None else spec
        self._width = len(tf.nest.flatten(self._spec, expand_composites=True))
        # The specs of all replicas, one after the other.
        self.specs = tuple(tf.nest.flatten(self._spec, expand_composites=True)) * num_replicas
        self._rows = device_rows.DeviceRows(self._spec, num_replicas, devices)
        # A queue entry: the status, and the tensors of all replicas, or their number.
        self._types = [tf.int32, *(s.dtype for s in self._rows.entry_specs)]
        self._lock = threading.RLock()  # A signal handler may call `cancel` at any point.
        self._queue = self._new_queue()
        # If unused rows are kept, holds the entry that a cancelled step has taken.
        self._unused: tf.queue.FIFOQueue | None = None
        self._mover = self._new_mover()
        self._pump: pump_lib.Pump | None = None
        self._finalizer: weakref.finalize[..., DatasetInputs] | None = None
        self._end: Exception | None = None
        self._first = 0  # Position at which the pump starts.
        self._is_closed = False
        self._num_cancels = 0  # Marks that no step has taken yet.

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self._queue.queue_ref,)

    def take(self, *arguments: Any) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        (queue,) = arguments

        def dequeue() -> list[tf.Tensor]:
            return tf.raw_ops.QueueDequeueV2(handle=queue, component_types=self._types)

        with tf.device("/cpu:0"):
            if self._unused is None:
                status, *entry = dequeue()
            else:
                status, *entry = tf.cond(self._unused.size() > 0, self._unused.dequeue, dequeue)
        status.set_shape([])
        # A queue does not keep shapes.
        for tensor, spec in zip(entry, self._rows.entry_specs, strict=True):
            tensor.set_shape(spec.shape)
        return status, entry

    def load(self, entry: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        return self._rows.get(entry)

    def keep_unused_rows(self) -> None:
        if self._unused is None:
            with tf.init_scope(), tf.device("/cpu:0"):
                self._unused = tf.queue.FIFOQueue(1, self._types)

    def keep_unused(self, status: tf.Tensor, agreed: tf.Tensor, entry: Sequence[tf.Tensor]) -> None:
        unused = self._unused
        if unused is None:
            return
        # Includes an entry with the status END, which contains a row if the data is padded.
        is_unused = tf.not_equal(status, contract.CANCELLED) & tf.equal(agreed, contract.CANCELLED)
        with tf.device("/cpu:0"):
            tf.cond(is_unused, lambda: unused.enqueue([status, *entry]), tf.no_op)

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
            self._first = position
            self._position.assign(position)

    def start(self) -> None:
        if self._is_closed:  # The queue would still provide the rows that were read ahead.
            raise contract.closed()
        if self._end is not None:
            raise self._end
        if self._pump is not None:
            return
        with self._lock:
            try:
                self._pump = pump_lib.Pump(self._mover, self._queue)
                self._finalizer = weakref.finalize(
                    self, pump_lib.close_later, self._pump, self._rows
                )
                self._finalizer.atexit = False
                self._pump.start(self._first)
            except BaseException:  # An interrupt: the thread may or may not be running.
                self._leave_pump()
                raise

    def restart(self) -> None:
        with self._lock:
            self._leave_pump()
            self._end = None
            self._first = 0
            self._position.assign(0)

    def cancel(self) -> None:
        with self._lock:
            self._num_cancels += 1
            self._mark_cancelled()

    def ended(self, status: int) -> Exception:
        if status == contract.CANCELLED:
            with self._lock:
                self._num_cancels = max(0, self._num_cancels - 1)
            return contract.cancelled()
        if status == contract.END:
            self._end = errors.EndOfData("the dataset has ended; repeat() it to train longer")
        else:
            self._end = self._own_error() or errors.StepFailed(
                "the input of another process failed, see there"
            )
        return self._end

    def failure(self, error: Exception) -> Exception:
        if isinstance(error, tf.errors.OutOfRangeError) and self._queue.is_closed():
            return self._own_error() or contract.closed()
        return error

    def num_ready(self) -> int:
        return int(self._queue.size())

    def close(self) -> None:
        self._is_closed = True
        with self._lock:
            if self._pump is not None:
                self._pump.close()
            else:
                with tf.init_scope():
                    self._queue.close(cancel_pending_enqueues=True)

    def _own_error(self) -> Exception | None:
        return self._pump.error if self._pump is not None else None

    def _leave_pump(self) -> None:
        """Abandons the rows that were read ahead, with the queue and pump that hold them."""
        pump, self._pump = self._pump, None
        if pump is None:
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        pump.close()
        self._rows.clear()
        self._queue = self._new_queue()
        if self._unused is not None and self._unused.size() > 0:
            self._unused.dequeue()
        for _ in range(self._num_cancels):
            self._mark_cancelled()

    def _new_queue(self) -> tf.queue.FIFOQueue:
        with tf.init_scope(), tf.device("/cpu:0"):
            return tf.queue.FIFOQueue(_READ_AHEAD, self._types)

    def _new_mover(self) -> pump_lib.Mover:
        return pump_lib.Mover(self._datasets, self._num_replicas, self._rows)

    def _mark_cancelled(self) -> None:
        # In another thread, because a full queue accepts the mark only when a step takes a row.
        threading.Thread(
            target=pump_lib.mark,
            args=(self._queue, self._rows.entry_specs, contract.CANCELLED),
            daemon=True,
        ).start()
