"""The input of a replicated step: one element for every replica, every step.

A pump thread moves elements from the dataset into a small queue of tensors, and the compiled step
takes them from there. The queue is what makes an input stoppable: a dataset that waits for data
(a replay table that is empty, say) cannot be interrupted, but a mark can always be put into the
queue for the step to find. A step that finds it does nothing else.
"""

import abc
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors

# What a step finds at the head of its input.
ELEMENT, CANCELLED, END, FAILED = range(4)


@dataclasses.dataclass(frozen=True)
class InputContext:
    """What an `input_fn` may ask about the place that it feeds.

    Attributes:
      num_replicas: all replicas of the step.
      input_pipeline_id: which of the pipelines this is, from 0.
      num_input_pipelines: how many times `input_fn` is called: once for every process, or once for
        every replica. Each should deal out a part of the data of its own.
    """

    num_replicas: int
    input_pipeline_id: int = 0
    num_input_pipelines: int = 1

    @property
    def num_replicas_in_sync(self) -> int:
        return self.num_replicas

    def per_replica_batch_size(self, global_batch_size: int) -> int:
        """The share of one replica.

        Raises:
          ConfigError: the batch does not divide by the number of replicas.
        """
        if global_batch_size < 1 or global_batch_size % self.num_replicas:
            raise errors.ConfigError(
                f"expected a global batch size that {self.num_replicas} replicas can share "
                f"equally, got {global_batch_size}; use a multiple of {self.num_replicas}"
            )
        return global_batch_size // self.num_replicas

    def shard(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """This pipeline's part: every `num_input_pipelines`-th element of `dataset`."""
        return dataset.shard(self.num_input_pipelines, self.input_pipeline_id)


InputFn = Callable[[InputContext], "tf.data.Dataset | Callable[[], Any]"]


class Inputs(abc.ABC):
    """Elements for the replicas of one or several steps. Made by `Replicator.make_inputs`."""

    specs: tuple[tf.TensorSpec, ...] = ()

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("/cpu:0"):
            self._position = tf.Variable(0, dtype=tf.int64, trainable=False, name="position")

    @abc.abstractmethod
    def take(self) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Traced by a step: takes the next row.

        Returns:
          The status, an int32 scalar (`ELEMENT` or why there is none), and the row's tensors, of
          `specs`. These mean nothing unless the status is `ELEMENT`.
        """

    @abc.abstractmethod
    def deal(self, row: Sequence[tf.Tensor]) -> list[Any]:
        """For each replica of this process, what `element` wants."""

    @abc.abstractmethod
    def element(self, dealt: Any) -> Any:
        """Traced inside each replica: what `step_fn` receives."""

    def agreed(self, counts: tf.Tensor) -> tf.Tensor:
        """Traced by a step of several processes: the status that holds for all of them.

        Args:
          counts: [4] int32, how many processes found each status.
        """
        found = [tf.cast(counts[status] > 0, tf.int32) for status in range(4)]
        rest = tf.where(found[FAILED] > 0, FAILED, END * found[END])
        return tf.where(found[CANCELLED] > 0, CANCELLED, rest)

    def advance(self) -> tf.Tensor:
        """Traced by a step once its row is there: counts it."""
        return self._position.assign_add(1, read_value=False)

    @property
    def position(self) -> int:
        """Rows that were used: the steps of all who share this input, since the data's start."""
        return int(self._position.numpy())

    @abc.abstractmethod
    def go_to(self, position: int) -> None:
        """Begins at a later row, as if those before it had been used. Before the first step only.

        The data is read again, and dropped, up to there; so with equal `input_fn` and global batch
        the data goes on where it was left, whatever the number of replicas is now.

        Raises:
          ConfigError: a step has been taken.
        """

    @abc.abstractmethod
    def restart(self) -> None:
        """Begins again with the first row. After `EndOfData` only."""

    @abc.abstractmethod
    def start(self) -> None:
        """Called before every step."""

    @abc.abstractmethod
    def cancel(self) -> None:
        """Leaves a mark: the step that meets it raises `StepCancelled`. Any thread may call."""

    @abc.abstractmethod
    def ended(self, status: int) -> Exception:
        """The error to raise when the replicas of all processes agreed on `status`."""

    def failure(self, error: Exception) -> Exception:
        """The error to raise for one that came out of the compiled step."""
        return error

    def num_ready(self) -> int | None:
        """Elements that wait for the step; None where none has to be waited for."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the input for good: a step that waits raises `EndOfData`, as do all later ones."""


class CallableInputs(Inputs):
    """A zero-argument function of TensorFlow, called anew by every replica in every step."""

    def __init__(self, functions: Sequence[Callable[[], Any]], num_replicas: int):
        """Takes one function for all replicas of this process, or one for each."""
        super().__init__()
        self._functions = tuple(functions)
        self._num_replicas = num_replicas
        with tf.init_scope(), tf.device("/cpu:0"):
            self._status = tf.Variable(ELEMENT, dtype=tf.int32, trainable=False, name="status")
        self._closed = False

    def take(self) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        return self._status.read_value(), ()

    def deal(self, row: Sequence[tf.Tensor]) -> list[Any]:
        functions = self._functions
        return [functions[i % len(functions)] for i in range(self._num_replicas)]

    def element(self, dealt: Any) -> Any:
        return dealt()

    def go_to(self, position: int) -> None:
        self._position.assign(position)

    def restart(self) -> None:
        self._position.assign(0)

    def start(self) -> None:
        if self._closed:
            raise _closed()

    def cancel(self) -> None:
        if not self._closed:
            self._status.assign(CANCELLED)

    def ended(self, status: int) -> Exception:
        if self._closed:
            return _closed()
        self._status.assign(ELEMENT)
        return _cancelled()

    def close(self) -> None:
        self._closed = True
        self._status.assign(END)


class DatasetInputs(Inputs):
    """The elements of datasets, dealt out to the replicas of this process in order.

    With one dataset, replica i of N receives element k * N + i in step k; with N, the k-th of
    dataset i. The elements of up to `capacity` steps wait ready, so they are that much older than
    the newest that the dataset could give. An incomplete row at the end of finite data is dropped.
    """

    def __init__(
        self,
        datasets: Sequence[tf.data.Dataset],
        num_replicas: int,
        capacity: int = 2,
        spec: Any = None,
    ):
        """Touches no data yet.

        Args:
          datasets: one for all replicas of this process, or one for each.
          num_replicas: of this process.
          capacity: rows that wait ready.
          spec: of what a replica takes, where it is not the element of the dataset.
        """
        super().__init__()
        self._datasets = tuple(datasets)
        self._num_replicas = num_replicas
        self._spec = datasets[0].element_spec if spec is None else spec
        # Of all replicas, one after the other.
        flat = tuple(tf.nest.flatten(self._spec, expand_composites=True))
        self.specs = flat * num_replicas
        self._capacity = capacity
        self._lock = threading.Lock()
        self._pump: threading.Thread | None = None
        self._lasting: Exception | None = None
        self._error: Exception | None = None
        # One entry of the queue is the status and the elements of all replicas.
        types = [tf.int32, *(s.dtype for s in self.specs)]
        with tf.init_scope(), tf.device("/cpu:0"):
            self._queue = tf.queue.FIFOQueue(capacity, types)

    def take(self) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        with tf.device("/cpu:0"):
            status, *flat = self._queue.dequeue()
        return self._shaped(status, flat)

    def _shaped(
        self, status: tf.Tensor, flat: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Adds what a queue forgets."""
        status.set_shape([])
        for tensor, spec in zip(flat, self.specs, strict=True):
            tensor.set_shape(spec.shape)
        return status, flat

    def deal(self, row: Sequence[tf.Tensor]) -> list[Any]:
        width = len(self.specs) // self._num_replicas
        return [
            tf.nest.pack_sequence_as(
                self._spec, row[i * width : (i + 1) * width], expand_composites=True
            )
            for i in range(self._num_replicas)
        ]

    def element(self, dealt: Any) -> Any:
        return dealt

    def go_to(self, position: int) -> None:
        with self._lock:
            if self._pump is not None:
                raise errors.ConfigError(
                    "expected an input from which no step was taken yet, found one in use; "
                    "restore its position before the first step"
                )
            self._position.assign(position)

    def start(self) -> None:
        if self._lasting is not None:
            raise self._lasting
        if self._pump is not None:
            return
        with self._lock:
            if self._pump is None:
                pump = threading.Thread(target=self._run, name="input-pump", daemon=True)
                pump.start()
                self._pump = pump

    def restart(self) -> None:
        with self._lock:
            self._lasting = self._pump = None
            self._position.assign(0)

    def _run(self) -> None:
        try:
            used = self.position * self._num_replicas // len(self._datasets)
            iterators = [iter(dataset.skip(used)) for dataset in self._datasets]

            @tf.function(autograph=False)
            def pump():
                def body(_):
                    row = self._row(iterators)
                    with tf.control_dependencies([self._queue.enqueue(row)]):
                        return tf.equal(row[0], ELEMENT)

                return tf.while_loop(
                    lambda more: more, body, [tf.constant(True)], parallel_iterations=1
                )

            pump()
        except tf.errors.OutOfRangeError:
            self._mark(END)
        except Exception as error:  # Whatever it is, the step's caller must see it.
            if not self._queue.is_closed():
                self._error = error
                self._mark(FAILED)

    def _row(self, iterators: Sequence[Any]) -> list[Any]:
        """Traced by the pump: the next entry of the queue."""
        row = [iterators[i % len(iterators)].get_next() for i in range(self._num_replicas)]
        return [tf.constant(ELEMENT), *tf.nest.flatten(row, expand_composites=True)]

    def _mark(self, status: int) -> None:
        empty = [tf.zeros([0], s.dtype) for s in self.specs]
        with contextlib.suppress(tf.errors.CancelledError):  # Closed in the meantime.
            self._queue.enqueue([status, *empty])

    def cancel(self) -> None:
        # In a thread of its own, because a full queue takes the mark only as the steps go on.
        threading.Thread(target=self._mark, args=(CANCELLED,), daemon=True).start()

    def ended(self, status: int) -> Exception:
        if status == CANCELLED:
            return _cancelled()
        if status == END:
            self._lasting = errors.EndOfData("the dataset has ended; repeat() it to train on")
        else:
            self._lasting = self._error or errors.StepFailed(
                "the input of another process failed, see there"
            )
        return self._lasting

    def failure(self, error: Exception) -> Exception:
        if isinstance(error, tf.errors.OutOfRangeError) and self._queue.is_closed():
            return _closed()
        return error

    def num_ready(self) -> int:
        return int(self._queue.size())

    def close(self) -> None:
        self._queue.close(cancel_pending_enqueues=True)


class PaddedInputs(DatasetInputs):
    """Finite data to its last example, for evaluation.

    What `step_fn` receives is `(element, mask)`: every batch is filled up with zeros to the same
    size, and `mask`, [batch] float32, is 1 for an example and 0 for filling. Replicas, and
    processes, that have no element left get batches of filling until all have ended.
    """

    def __init__(
        self,
        datasets: Sequence[tf.data.Dataset],
        num_replicas: int,
        per_replica_batch_size: int,
        capacity: int = 2,
    ):
        spec = tf.nest.map_structure(
            lambda s: padded_spec(s, per_replica_batch_size), datasets[0].element_spec
        )
        self._batch_size = per_replica_batch_size
        mask_spec = tf.TensorSpec([per_replica_batch_size], tf.float32)
        super().__init__(datasets, num_replicas, capacity, (spec, mask_spec))
        with tf.init_scope(), tf.device("/cpu:0"):
            self._over = tf.Variable(False, trainable=False, name="over")

    def _row(self, iterators: Sequence[Any]) -> list[Any]:
        row, found = [], []
        width = len(self.specs) // self._num_replicas
        for i in range(self._num_replicas):
            optional = iterators[i % len(iterators)].get_next_as_optional()
            found.append(optional.has_value())
            row.extend(
                tf.cond(
                    found[-1],
                    lambda optional=optional: pad(optional.get_value(), self._batch_size),
                    lambda: [tf.zeros(s.shape, s.dtype) for s in self.specs[:width]],
                )
            )
        return [tf.where(tf.reduce_any(found), ELEMENT, END), *row]

    def take(self) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        def fresh():
            status, *flat = self._queue.dequeue()
            with tf.control_dependencies([self._over.assign(tf.equal(status, END))]):
                return [tf.identity(status), *flat]

        def over():
            return [tf.constant(END), *(tf.zeros(s.shape, s.dtype) for s in self.specs)]

        with tf.device("/cpu:0"):
            status, *flat = tf.cond(self._over, over, fresh)
        return self._shaped(status, flat)

    def agreed(self, counts: tf.Tensor) -> tf.Tensor:
        ended = tf.equal(counts[END], tf.reduce_sum(counts))
        others = super().agreed(tf.tensor_scatter_nd_update(counts, [[END]], [0]))
        return tf.where(ended, END, others)

    def restart(self) -> None:
        super().restart()
        self._over.assign(False)


def pad(element: Any, batch_size: int) -> list[tf.Tensor]:
    """Pads a batch with zeros to a fixed number of examples.

    Args:
      element: nest of tensors [B, ...], B <= `batch_size`.
      batch_size: number of examples after padding.

    Returns:
      The flat tensors [batch_size, ...], then the mask, [batch_size] float32: 1 for an example, 0
      for padding.

    Raises:
      InvalidArgumentError: when the graph runs, if the batch is larger than `batch_size`.
    """
    flat = tf.nest.flatten(element)
    size = tf.shape(flat[0])[0]
    missing = batch_size - size
    check = tf.debugging.assert_non_negative(missing, "a batch of the data is larger than pad_to")
    # Without the dependency the two ops race, and the pad op fails first with an error of its own.
    with tf.control_dependencies([] if check is None else [check]):
        missing = tf.identity(missing)
    flat.append(tf.ones([size]))
    return [tf.pad(x, [[0, missing]] + [[0, 0]] * (x.shape.rank - 1)) for x in flat]


def padded_spec(spec: Any, batch_size: int) -> tf.TensorSpec:
    """What `pad` makes of a tensor.

    Raises:
      ConfigError: it is not a batch, or its examples differ in size.
    """
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank or None in spec.shape[1:]:
        raise errors.ConfigError(
            f"expected batches of dense tensors of known shapes to fill up, got {spec}; "
            "batch() the data, or leave pad_to out"
        )
    return tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype)


def _cancelled() -> errors.StepCancelled:
    return errors.StepCancelled("the step was cancelled while it waited for input")


def _closed() -> errors.EndOfData:
    return errors.EndOfData("the input was closed")


def sources(input_fn: InputFn, contexts: Sequence[InputContext], pad_to: int | None) -> list[Any]:
    """Calls `input_fn` once for every context.

    Returns:
      Datasets, or callables.

    Raises:
      ConfigError: they are neither, or not alike, or callables that should be padded.
    """
    found: list[Any] = [input_fn(context) for context in contexts]
    if all(isinstance(source, tf.data.Dataset) for source in found):
        for source in found[1:]:
            if source.element_spec != found[0].element_spec:
                raise errors.ConfigError(
                    f"expected datasets with equal elements, got {found[0].element_spec} and "
                    f"{source.element_spec}; let input_fn differ only in what it reads"
                )
        return found
    if all(callable(source) for source in found) and pad_to is None:
        return found
    raise errors.ConfigError(
        "expected input_fn to return a tf.data.Dataset"
        + (" or a zero-argument callable" if pad_to is None else ", the only thing to pad")
        + f", got {type(found[0]).__name__}; batch your data with "
        "tf.data.Dataset.from_tensor_slices(...)"
    )


def make(
    input_fn: InputFn,
    contexts: Sequence[InputContext],
    num_replicas: int,
    pad_to: int | None,
) -> Inputs:
    """Wraps what `input_fn` returns for the replicas of this process.

    Args:
      input_fn: see `Replicator.make_inputs`.
      contexts: one for this process, or one for each of its replicas.
      num_replicas: of this process.
      pad_to: see `Replicator.make_inputs`.

    Raises:
      ConfigError: see `sources`.
    """
    found = sources(input_fn, contexts, pad_to)
    if not isinstance(found[0], tf.data.Dataset):
        return CallableInputs(found, num_replicas)
    if pad_to is not None:
        return PaddedInputs(found, num_replicas, pad_to)
    return DatasetInputs(found, num_replicas)
