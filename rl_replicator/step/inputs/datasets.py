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
from rl_replicator.step.inputs import contract
from rl_replicator.step.inputs import pump as pump_lib

_READ_AHEAD = 2  # Rows in the queue; one more waits for a place in it.


class DatasetInputs(contract.Inputs):
    """The elements of datasets, in order, one for each replica of this process in every step.

    With one dataset, replica i of N receives element k * N + i in step k; with N datasets, element
    k of dataset i. Two rows are read ahead, so a step's data is older than the newest data by as
    many rows. An incomplete row at the end of finite data is dropped; a row of batches of different
    sizes is an error. Reading ends when the input and all its steps are no longer referenced.
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
        self._num_replicas = num_replicas
        self._spec = datasets[0].element_spec if spec is None else spec
        self._width = len(tf.nest.flatten(self._spec, expand_composites=True))
        # The specs of all replicas, one after the other.
        self.specs = tuple(tf.nest.flatten(self._spec, expand_composites=True)) * num_replicas
        self._rows = pump_lib.DeviceRows(self._spec, num_replicas, devices)
        # A queue entry: the status, and the tensors of all replicas, or their number.
        self._types = [tf.int32, *(s.dtype for s in self._rows.entry_specs)]
        self._lock = threading.RLock()  # A signal handler may call `close` at any point.
        self._queue = self._new_queue(_READ_AHEAD)
        # If unused rows are kept, holds the entry that a cancelled step has taken.
        self._unused: tf.queue.FIFOQueue | None = None
        self._mover = pump_lib.Mover(datasets, num_replicas, self._rows, self._row_status)
        self._pump: pump_lib.Pump | None = None
        self._finalizer: weakref.finalize[..., DatasetInputs] | None = None
        self._end: Exception | None = None
        self._first = 0  # Position at which the pump starts.
        self._is_closed = False

    @staticmethod
    def _row_status(elements: list[Any]) -> tuple[Any, list[Any]]:
        """Traced: see `Mover`."""
        sizes = [
            tf.add_n(
                [tf.shape(x)[0] for x in tf.nest.flatten(element) if _is_of_any_size(x)] or [0]
            )
            for element in elements
        ]
        is_even = tf.equal(tf.reduce_min(sizes), tf.reduce_max(sizes))
        return tf.where(is_even, -sizes[0], contract.UNEVEN), elements

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
        return status, entry

    def load(self, entry: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        # A queue does not keep shapes. TensorFlow rewrites the graph of the step (it fuses
        # operations, for example) only where it knows them, and it does not know `set_shape`.
        row = zip(self._rows.get(entry), self.specs, strict=True)
        return [tf.ensure_shape(tensor, spec.shape) for tensor, spec in row]

    def keep_unused_rows(self) -> None:
        if self._unused is None:
            self._unused = self._new_queue(1)

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
        if self._pump is None:
            with self._lock:
                self._pump = pump_lib.Pump(self._mover, self._queue)
                self._finalizer = weakref.finalize(self, self._pump.free)
                self._finalizer.atexit = False
                self._pump.start(self._first)

    def restart(self) -> None:
        with self._lock:
            self._end, self._first = None, 0
            self._position.assign(0)
            if self._pump is None or self._finalizer is None:
                return
            self._finalizer.detach()
            self._pump.discard()
            self._pump = None
            self._queue = self._new_queue(_READ_AHEAD)
            if self._unused is not None and self._unused.size() > 0:
                self._unused.dequeue()

    def cancel(self) -> None:
        # In another thread, because a full queue accepts the mark only when a step takes a row.
        threading.Thread(
            target=pump_lib.mark,
            args=(self._queue, self._rows.entry_specs, contract.CANCELLED),
            daemon=True,
        ).start()

    def ended(self, status: int) -> Exception:
        if status == contract.CANCELLED:
            return contract.cancelled()
        if status == contract.END:
            self._end = errors.EndOfData(
                "the dataset has no element for a step: batch(drop_remainder=True) drops a batch "
                "that is not full"
                if self.position == self._first
                else "the dataset has ended; repeat() it to train longer"
            )
        elif status == contract.UNEVEN:
            self._end = errors.ConfigError(
                "expected batches of one size on all replicas, got different ones, whose examples "
                "would count differently; use batch(..., drop_remainder=True), or pad_to"
            )
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

    def _own_error(self) -> Exception | None:
        return self._pump.error if self._pump is not None else None

    def _new_queue(self, capacity: int) -> tf.queue.FIFOQueue:
        with tf.init_scope(), tf.device("/cpu:0"):
            return tf.queue.FIFOQueue(capacity, self._types)


class PaddedInputs(DatasetInputs):
    """Finite data up to its last example, for evaluation.

    `step_fn` receives `(element, mask)`: every batch is padded with zeros to the same size, and
    `mask`, [batch] float32, is 1 for an example and 0 for padding. Replicas and processes whose
    data has ended receive padding until all data has ended.
    """

    def __init__(
        self,
        sources: Sequence[tf.data.Dataset],
        num_replicas: int,
        per_replica_batch_size: int,
        devices: Sequence[str] = (),
    ):
        """Reads nothing yet.

        Args:
          sources: one dataset for all replicas of this process, or one for each.
          num_replicas: number of replicas of this process.
          per_replica_batch_size: number of examples in a padded batch.
          devices: see `DatasetInputs`.

        Raises:
          ConfigError: if the elements are not batches of dense tensors of known shapes, or are
            larger than a padded batch.
        """
        size = per_replica_batch_size
        specs = tf.nest.map_structure(lambda s: padded_spec(s, size), sources[0].element_spec)
        spec = (specs, tf.TensorSpec([size], tf.float32))
        self._too_large = _too_large("more", size)
        padding = [tf.zeros(s.shape, s.dtype) for s in tf.nest.flatten(spec)]
        endless = tf.data.Dataset.from_tensors((False, *padding)).repeat()
        padded = [
            source.map(lambda *x: (True, *pad(x, size))).concatenate(endless) for source in sources
        ]
        super().__init__(padded, num_replicas, spec, devices)

    @staticmethod
    def _row_status(elements: list[Any]) -> tuple[Any, list[Any]]:
        # When the data of this process has ended, others may still have data. Until theirs has
        # ended, too, this process takes steps on padding.
        has_data = tf.reduce_any([element[0] for element in elements])
        return tf.where(has_data, contract.ELEMENT, contract.END), [x[1:] for x in elements]

    def combine_statuses(self, statuses: tf.Tensor) -> tf.Tensor:
        has_ended = tf.equal(statuses, contract.END)
        others = super().combine_statuses(tf.where(has_ended, contract.ELEMENT, statuses))
        return tf.where(tf.reduce_all(has_ended), contract.END, others)

    def _own_error(self) -> Exception | None:
        error = super()._own_error()
        # TensorFlow adds text around the message.
        return self._too_large if str(self._too_large) in str(error) else error


def _is_of_any_size(x: Any) -> bool:
    return isinstance(x, tf.Tensor) and bool(x.shape.rank) and x.shape[0] is None


def pad(element: Any, batch_size: int) -> list[tf.Tensor]:
    """Pads a batch with zeros to a fixed number of examples.

    Args:
      element: nest of tensors [B, ...], B <= `batch_size`.
      batch_size: number of examples after padding.

    Returns:
      The flat tensors [batch_size, ...], then the mask, [batch_size] float32: 1 for an example, 0
      for padding.

    Raises:
      InvalidArgumentError: when the graph runs, if the batch is larger than `batch_size`, or its
        tensors have different lengths.
    """
    flat = tf.nest.flatten(element)
    size = tf.shape(flat[0])[0]
    missing = batch_size - size
    check = tf.debugging.assert_non_negative(missing, str(_too_large("more", batch_size)))
    # Without this dependency, the check and the padding race, and the padding may fail first, with
    # another error.
    with tf.control_dependencies([check]):
        missing = tf.identity(missing)
    flat.append(tf.ones([size]))
    return [
        tf.ensure_shape(
            tf.pad(x, [[0, missing]] + [[0, 0]] * (x.shape.rank - 1)), [batch_size, *x.shape[1:]]
        )
        for x in flat
    ]


def padded_spec(spec: Any, batch_size: int) -> tf.TensorSpec:
    """Returns the spec of a tensor after `pad`.

    Args:
      spec: spec of the tensor before padding, [None or B, ...].
      batch_size: number of examples after padding.

    Raises:
      ConfigError: if the tensor is no batch, the batch is too large, or its examples may differ in
        shape.
    """
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank or None in spec.shape[1:]:
        raise errors.ConfigError(
            f"expected batches of dense tensors of known shapes to pad, got {spec}; "
            "batch() examples of known shapes, once"
        )
    if spec.shape[0] is not None and spec.shape[0] > batch_size:
        raise _too_large(spec.shape[0], batch_size)
    return tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype)


def _too_large(found: Any, batch_size: int) -> errors.ConfigError:
    return errors.ConfigError(
        f"expected batches of at most {batch_size} examples to pad, got {found}; batch the data "
        "with context.per_replica_batch_size(global_batch_size)"
    )
