"""The input of steps that run on the workers of a cluster, where the data is read.

What `input_fn` returns is described to the workers as a graph; so it may use everything that is
TensorFlow, and no Python generator. Where a worker may have to wait for data, a clock ticks among
its elements: a step that finds a tick comes back without having done anything, so that nothing
waits where nobody can interrupt it.
"""

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.step import inputs as inputs_lib

# A step has found a tick of the clock. Beside the statuses of `inputs`.
WAITING = inputs_lib.FAILED + 1

_TICK_MICROSECONDS = 250_000
# A worker whose data has ended says so to every step that it is given, but does not spin.
_END_MICROSECONDS = 10_000
_CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"


class WorkerInputs(inputs_lib.Inputs):
    """One pipeline for every worker; what is read, and by whom, is counted on a parameter server.

    Its marks (cancelled, closed, ended) are kept by the coordinator, and are read and set with the
    scheduler's `news` held.
    """

    argument_specs: tuple[Any, ...] = ()

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        news: Any,
        num_workers: int,
        home: str,
    ):
        """Reads nothing yet.

        Args:
          coordinator: of the workers.
          news: the scheduler's condition.
          num_workers: as many pipelines.
          home: device of the counters.
        """
        super().__init__()
        with tf.init_scope(), tf.device(home):
            self._position = tf.Variable(tf.zeros([num_workers], tf.int64), trainable=False)
        self._coordinator = coordinator
        self._news = news
        self.num_workers = num_workers
        self._cancels = 0
        self._closed = False
        self._is_used = False
        self._ended: set[int] = set()
        self._arguments: tuple[Any, ...] | None = None
        self._worker: tf.Tensor | None = None
        # Grows with every restart, so that late words of an earlier pass can be told.
        self.generation = 0

    @contextlib.contextmanager
    def on_worker(self) -> Iterator[tf.Tensor]:
        """Context in which a step is traced; yields the index of the worker, an int64 scalar."""
        self._worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        yield self._worker
        self._worker = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What a step is called with, of `argument_specs`."""
        if self._arguments is None:
            self._arguments = self._make_arguments()
        return self._arguments

    @abc.abstractmethod
    def _make_arguments(self) -> tuple[Any, ...]:
        """Opens every worker's pipeline at its position."""

    def advance(self) -> tf.Tensor:
        one = tf.IndexedSlices(tf.ones([], tf.int64), self._worker)
        return self._position.scatter_add(one)

    @property
    def position(self) -> int:
        return int(self._position.numpy().sum())

    def go_to(self, position: int) -> None:
        """As if all workers had gone equally far."""
        if self._is_used:
            raise errors.ConfigError(
                "expected an input from which no step was taken yet, found one in use; "
                "restore its position before the first step"
            )
        shares = range(position, position - self.num_workers, -1)
        self._position.assign([max(0, -(-share // self.num_workers)) for share in shares])

    def restart(self) -> None:
        with self._news:
            self.generation += 1
            self._arguments = None
            self._ended.clear()
            self._position.assign(tf.zeros_like(self._position))

    def start(self) -> None:
        self._is_used = True

    def raise_marks(self) -> None:
        """Raises `StepCancelled` or `EndOfData` if the step is to end now."""
        if self._cancels:
            self._cancels -= 1
            raise self.ended(inputs_lib.CANCELLED)
        if self._closed:
            raise errors.EndOfData("the input was closed")

    def note_end(self, worker: int, generation: int) -> None:
        """A worker has found the end of its data."""
        if generation == self.generation:
            self._ended.add(worker)

    def is_over(self, given_up: set[int]) -> bool:
        """Whether no worker has data left, but for those that are given up."""
        return bool(self._ended) and len(self._ended | given_up) == self.num_workers

    def cancel(self) -> None:
        with self._news:
            if not self._closed:
                self._cancels += 1
                self._news.notify_all()

    def ended(self, status: int) -> Exception:
        if status == inputs_lib.CANCELLED:
            return errors.StepCancelled("the step was cancelled")
        return errors.EndOfData("the data of all workers has ended; repeat() it to train on")

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()


class WorkerDatasets(WorkerInputs):
    """A dataset for every worker. Each element makes one step, on the worker that has read it.

    A worker that was lost and comes back goes on behind its last element if the length of its data
    is known; otherwise (data from a replay table, say) it opens the data anew.
    """

    def __init__(
        self, datasets: Sequence[tf.data.Dataset], pad_to: int | None = None, **places: Any
    ):
        """Touches no data yet.

        Args:
          datasets: one for each worker.
          pad_to: see `Replicator.make_inputs`.
          **places: see `WorkerInputs`.

        Raises:
          ConfigError: the datasets cannot be sent to other processes, or cannot be padded.
        """
        super().__init__(**places)
        self._sources = [_serialized(dataset) for dataset in datasets]
        self._source_spec = datasets[0].element_spec
        cardinalities = [int(dataset.cardinality()) for dataset in datasets]
        self._is_finite = min(cardinalities) >= 0
        # Data of known length, or known to be endless, is there; other data may have to be waited
        # for: a replay table that is empty, say.
        self._may_wait = tf.data.UNKNOWN_CARDINALITY in cardinalities
        self._origin = self._position.read_value()
        self._pad_to = pad_to
        self._spec = self._source_spec
        if pad_to is not None:
            padded = tf.nest.map_structure(
                lambda spec: inputs_lib.padded_spec(spec, pad_to), self._source_spec
            )
            self._spec = (padded, tf.TensorSpec([pad_to], tf.float32))
        self.specs = tuple(tf.nest.flatten(self._spec, expand_composites=True))
        status_spec = tf.TensorSpec([], tf.int32)
        self.argument_specs = (tf.data.IteratorSpec((status_spec, *self.specs)),)

    def go_to(self, position: int) -> None:
        super().go_to(position)
        self._origin = self._position.read_value()

    def restart(self) -> None:
        super().restart()
        self._origin = self._position.read_value()

    def take(self, *arguments: Any) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        (iterator,) = arguments
        status, *flat = iterator.get_next()
        return status, flat

    def split(self, row: Sequence[tf.Tensor]) -> list[Any]:
        return [tf.nest.pack_sequence_as(self._spec, row, expand_composites=True)]

    def element(self, part: Any) -> Any:
        return part

    def _make_arguments(self) -> tuple[Any, ...]:
        begin = self._position if self._is_finite else self._origin

        def open_on_worker():
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            with tf.device(_CHIEF):  # So that only the worker's own graph travels.
                graph = tf.gather(tf.stack(self._sources), worker)
            data = tf.data.experimental.from_variant(
                tf.raw_ops.DatasetFromGraph(graph_def=graph), self._source_spec
            )
            told = self._told(data.skip(tf.gather(begin, worker)))
            return self._with_ticks(told) if self._may_wait else told

        return (iter(self._coordinator.create_per_worker_dataset(open_on_worker)),)

    def _told(self, data: tf.data.Dataset) -> tf.data.Dataset:
        """The status and the tensors of each element; at the end, that it is the end, for ever."""

        def element(*element):
            flat = tf.nest.flatten(element, expand_composites=True)
            flat = flat if self._pad_to is None else inputs_lib.pad(element, self._pad_to)
            return (tf.constant(inputs_lib.ELEMENT), *flat)

        end = self._blanks(tf.data.Dataset.from_tensors(inputs_lib.END))
        told = data.map(element).concatenate(end)
        return told.concatenate(self._every(_END_MICROSECONDS, inputs_lib.END))

    def _with_ticks(self, told: tf.data.Dataset) -> tf.data.Dataset:
        ticks = _like(told, self._every(_TICK_MICROSECONDS, WAITING))
        both = tf.data.Dataset.from_tensors(told).concatenate(tf.data.Dataset.from_tensors(ticks))
        # Whichever of the two has something is served; each keeps its own order.
        return both.interleave(
            lambda source: source, cycle_length=2, num_parallel_calls=2, deterministic=False
        )

    def _every(self, microseconds: int, status: int) -> tf.data.Dataset:
        statuses = tf.data.Dataset.from_tensors(status).repeat()
        return self._blanks(_slow(statuses, microseconds))

    def _blanks(self, statuses: tf.data.Dataset) -> tf.data.Dataset:
        return statuses.map(
            lambda status: (
                status,
                *(tf.zeros([d or 0 for d in s.shape], s.dtype) for s in self.specs),
            )
        )


class WorkerCallables(WorkerInputs):
    """A function of TensorFlow for every worker, called anew in every step."""

    specs = (tf.TensorSpec([], tf.int64),)

    def __init__(self, functions: Sequence[Callable[[], Any]], **places: Any):
        super().__init__(**places)
        self._functions = tuple(functions)

    def take(self, *arguments: Any) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        del arguments
        return tf.constant(inputs_lib.ELEMENT), (self._worker,)

    def split(self, row: Sequence[tf.Tensor]) -> list[Any]:
        return list(row)

    def element(self, part: Any) -> Any:
        if len(self._functions) == 1:
            return self._functions[0]()
        return tf.switch_case(tf.cast(part, tf.int32), self._functions)

    def _make_arguments(self) -> tuple[Any, ...]:
        return ()


def make(
    input_fn: inputs_lib.InputFn, num_workers: int, pad_to: int | None, **places: Any
) -> WorkerInputs:
    """Calls `input_fn` once for every worker and wraps what it returns.

    Args:
      input_fn: see `Replicator.make_inputs`.
      num_workers: of the cluster.
      pad_to: see `Replicator.make_inputs`.
      **places: see `WorkerInputs`.

    Raises:
      ConfigError: the results are neither datasets nor callables, or not alike, or cannot be sent.
    """
    places = {"num_workers": num_workers, **places}
    sources = inputs_lib.call_input_fn(
        input_fn,
        [inputs_lib.InputContext(1, worker, num_workers) for worker in range(num_workers)],
        pad_to,
    )
    if isinstance(sources[0], tf.data.Dataset):
        return WorkerDatasets(sources, pad_to, **places)
    return WorkerCallables(sources, **places)


def _serialized(dataset: tf.data.Dataset) -> tf.Tensor:
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=1,  # Random seeds and connections to replay tables: made anew there.
        strip_device_assignment=True,
    )
    if b"PyFunc" in graph.numpy():
        raise errors.ConfigError(
            "expected data that other processes can read, got a dataset with Python code in it "
            "(from_generator, py_function or numpy_function); read from files, tensors or a replay "
            "table instead"
        )
    return graph


def _slow(dataset: tf.data.Dataset, microseconds: int) -> tf.data.Dataset:
    """The same elements, each after a wait."""
    specs = tf.nest.flatten(dataset.element_spec)
    variant = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        sleep_microseconds=tf.constant(microseconds, tf.int64),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def _like(one: tf.data.Dataset, other: tf.data.Dataset) -> tf.data.Dataset:
    """`other` with the element spec of `one`, which is as general or more."""
    return tf.data.experimental.from_variant(
        tf.data.experimental.to_variant(other), one.element_spec
    )
