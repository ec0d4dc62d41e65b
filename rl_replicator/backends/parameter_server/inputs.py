"""The inputs of steps that run on workers, which read the data themselves.

Workers receive the datasets as graphs, so these may use all of TensorFlow's ops but no Python
generator. If a worker may have to wait for data, its dataset interleaves the elements with ticks: a
step that takes a tick returns without doing anything. So no step waits indefinitely on a worker,
where nothing could interrupt it.
"""

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.backends.parameter_server import scheduler
from rl_replicator.step import output_arrays
from rl_replicator.step.inputs import contract
from rl_replicator.step.inputs.datasets import pad, padded_spec
from rl_replicator.step.inputs.sources import call_input_fn, refuse_constants

# Status of a step that took a tick; the others are those of `step.inputs.contract`.
WAITING = contract.CANCELLED + 1

_TICK_MICROSECONDS = 250_000
# Delay before a worker whose data has ended reports this to a step.
_END_MICROSECONDS = 10_000
_CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"


class WorkerInputs(contract.Inputs):
    """A pipeline for every worker, whose positions are counted on a parameter server.

    The coordinator keeps the state (cancelled, closed, ended), which the lock of the scheduler's
    `news` guards.
    """

    argument_specs: tuple[Any, ...] = ()

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        schedule: scheduler.CallScheduler,
        num_workers: int,
        home: str,
    ):
        """Reads nothing yet.

        Args:
          coordinator: coordinator of the workers.
          schedule: scheduler of the steps.
          num_workers: number of pipelines.
          home: device of the counters.
        """
        super().__init__()
        with tf.init_scope(), tf.device(home):
            self._position = tf.Variable(tf.zeros([num_workers], tf.int64), trainable=False)
        self._origin = self._position.read_value()  # Where the pass begins.
        self._coordinator = coordinator
        self._schedule = schedule
        self.num_workers = num_workers
        self._cancels = 0
        self._closed = False
        self._is_used = False  # Since the last restart.
        self._ended: set[int] = set()
        self._arguments: tuple[Any, ...] | None = None
        self._worker: tf.Tensor | None = None
        self.generation = 0  # Number of restarts, by which steps recognise outputs from before.

    @contextlib.contextmanager
    def on_worker(self) -> Iterator[tf.Tensor]:
        """Context in which a step is traced; yields the index of the worker, an int64 scalar."""
        self._worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        yield self._worker
        self._worker = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Arguments of a step, per-worker values that match `argument_specs`."""
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
        """Sets the position, divided evenly among the workers. See `Inputs.go_to`."""
        if self._is_used:
            raise errors.ConfigError(
                "expected an input from which no step was taken yet, found one in use; restore "
                "its position before the first step"
            )
        shares = range(position, position - self.num_workers, -1)
        self._begin_at([max(0, -(-share // self.num_workers)) for share in shares])

    def restart(self) -> None:
        self._schedule.drain()
        with self._schedule.news:
            self.generation += 1
            self._arguments = None
            self._ended.clear()
            self._cancels = 0
            self._is_used = False
            self._begin_at([0] * self.num_workers)

    def _begin_at(self, positions: Sequence[int]) -> None:
        self._position.assign(positions)
        self._origin = tf.constant(positions, tf.int64)

    def start(self) -> None:
        self._is_used = True

    def raise_marks(self) -> None:
        """Raises an error if the input was cancelled or closed."""
        if self._cancels:
            self._cancels -= 1
            raise self.ended(contract.CANCELLED)
        if self._closed:
            raise contract.closed()

    def note_end(self, worker: int) -> None:
        """Records that the data of a worker, given by its index, has ended."""
        self._ended.add(worker)

    def is_over(self) -> bool:
        """Returns whether the data of all workers has ended."""
        return len(self._ended) == self.num_workers

    def cancel(self) -> None:
        with self._schedule.news:
            if not self._closed:
                self._cancels += 1
                self._schedule.news.notify_all()

    def ended(self, status: int) -> Exception:
        if status == contract.CANCELLED:
            return errors.StepCancelled("the step was cancelled")
        return errors.EndOfData("the data of all workers has ended; repeat() it to train longer")

    def close(self) -> None:
        with self._schedule.news:
            self._closed = True
            self._schedule.news.notify_all()


class WorkerDatasets(WorkerInputs):
    """A dataset for every worker. Each element feeds one step, on the worker that reads it.

    A worker that restarts continues after its last element if the length of its data is known.
    Otherwise, as for data from a replay table, it opens the data again.
    """

    def __init__(
        self, datasets: Sequence[tf.data.Dataset], pad_to: int | None = None, **places: Any
    ):
        """Reads nothing yet.

        Args:
          datasets: a dataset for each worker.
          pad_to: see `Replicator.make_inputs`.
          **places: see `WorkerInputs`.

        Raises:
          ConfigError: if the datasets use Python code, or cannot be padded.
        """
        super().__init__(**places)
        self._sources = [_serialized(dataset) for dataset in datasets]
        self._source_spec = datasets[0].element_spec
        cardinalities = [int(dataset.cardinality()) for dataset in datasets]
        self._is_finite = min(cardinalities) >= 0
        # A worker may have to wait for data of unknown length only, such as that of an empty replay
        # table.
        self._may_wait = tf.data.UNKNOWN_CARDINALITY in cardinalities
        self._pad_to = pad_to
        self._spec = self._source_spec
        if pad_to is not None:
            padded = tf.nest.map_structure(
                lambda spec: padded_spec(spec, pad_to), self._source_spec
            )
            self._spec = (padded, tf.TensorSpec([pad_to], tf.float32))
        self.specs = tuple(tf.nest.flatten(self._spec, expand_composites=True))
        status_spec = tf.TensorSpec([], tf.int32)
        self.argument_specs = (tf.data.IteratorSpec((status_spec, *self.specs)),)

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

        def open_on_worker() -> tf.data.Dataset:
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            with tf.device(_CHIEF):  # So that each worker receives only its own graph.
                graph = tf.gather(tf.stack(self._sources), worker)
            data = tf.data.experimental.from_variant(
                tf.raw_ops.DatasetFromGraph(graph_def=graph), self._source_spec
            )
            rows = self._with_status(data.skip(tf.gather(begin, worker)))
            return self._with_ticks(rows) if self._may_wait else rows

        return (iter(self._coordinator.create_per_worker_dataset(open_on_worker)),)

    def _with_status(self, data: tf.data.Dataset) -> tf.data.Dataset:
        """Prepends a status to the tensors of each element; repeats `END` after the last one."""

        def element(*element: Any) -> tuple[Any, ...]:
            flat = tf.nest.flatten(element, expand_composites=True)
            flat = [x for x in flat if x is not None]
            flat = flat if self._pad_to is None else pad(element, self._pad_to)
            return (tf.constant(contract.ELEMENT), *flat)

        return data.map(element).concatenate(self._every(_END_MICROSECONDS, contract.END))

    def _with_ticks(self, rows: tf.data.Dataset) -> tf.data.Dataset:
        ticks = _like(rows, self._every(_TICK_MICROSECONDS, WAITING))
        both = tf.data.Dataset.from_tensors(rows).concatenate(tf.data.Dataset.from_tensors(ticks))
        # Takes from either dataset as soon as it has an element; each keeps its own order.
        return both.interleave(
            lambda source: source, cycle_length=2, num_parallel_calls=2, deterministic=False
        )

    def _every(self, microseconds: int, status: int) -> tf.data.Dataset:
        """Returns endless rows without data, each after a delay."""
        statuses = tf.data.Dataset.from_tensors(status).repeat()
        variant = tf.raw_ops.SleepDataset(
            input_dataset=tf.data.experimental.to_variant(statuses),
            sleep_microseconds=tf.constant(microseconds, tf.int64),
            output_types=[tf.int32],
            output_shapes=[[]],
        )
        late = tf.data.experimental.from_variant(variant, statuses.element_spec)
        return late.map(lambda one: (one, *(output_arrays.blank(s) for s in self.specs)))


class WorkerCallables(WorkerInputs):
    """A callable for every worker, which calls it in every step."""

    specs = (tf.TensorSpec([], tf.int64),)

    def __init__(self, functions: Sequence[Callable[[], Any]], **places: Any):
        """Calls nothing yet.

        Args:
          functions: a callable for each worker.
          **places: see `WorkerInputs`.
        """
        super().__init__(**places)
        self._functions = tuple(refuse_constants(function) for function in functions)

    def take(self, *arguments: Any) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        del arguments
        return tf.constant(contract.ELEMENT), (self._worker,)

    def split(self, row: Sequence[tf.Tensor]) -> list[Any]:
        return list(row)

    def element(self, part: Any) -> Any:
        return tf.switch_case(tf.cast(part, tf.int32), self._functions)

    def _make_arguments(self) -> tuple[Any, ...]:
        return ()


def make(
    input_fn: contract.InputFn, num_workers: int, pad_to: int | None, **places: Any
) -> WorkerInputs:
    """Calls `input_fn` once for every worker, and makes an input from the results.

    Args:
      input_fn: see `Replicator.make_inputs`.
      num_workers: number of workers of the cluster.
      pad_to: see `Replicator.make_inputs`.
      **places: see `WorkerInputs`.

    Returns:
      The input.

    Raises:
      ConfigError: if the results are neither datasets nor callables, if they differ in type, or if
        a dataset uses Python code.
    """
    places = {"num_workers": num_workers, **places}
    sources = call_input_fn(
        input_fn,
        [contract.InputContext(1, worker, num_workers) for worker in range(num_workers)],
        pad_to,
    )
    if isinstance(sources[0], tf.data.Dataset):
        return WorkerDatasets(sources, pad_to, **places)
    return WorkerCallables(sources, **places)


def _serialized(dataset: tf.data.Dataset) -> tf.Tensor:
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        # Ignores state such as random seeds and connections to replay tables; workers make new
        # ones.
        external_state_policy=1,
        strip_device_assignment=True,
    )
    if b"PyFunc" in graph.numpy():
        raise errors.ConfigError(
            "expected data that other processes can read, got a dataset with Python code "
            "(from_generator, py_function or numpy_function); read from files, tensors or a replay "
            "table instead"
        )
    return graph


def _like(one: tf.data.Dataset, other: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `other` with the element spec of `one`, which must be at least as general."""
    return tf.data.experimental.from_variant(
        tf.data.experimental.to_variant(other), one.element_spec
    )
