"""Tables in the memory of one process, which draw the same items in every run.

Reverb seeds its selectors from the operating system, and inserts and samples in threads, so that no
two runs draw the same rows.
"""

import abc
import json
import queue
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from agents.replay.priorities import for_table
from agents.replay.table import LearnerDemand, unpacked
from agents.replay.transitions import Layout, Sample
from rl_replicator.checkpoints.parts import JsonPart, JsonValue

_STATE = "state.json"
_ROWS = "rows.npy"
_WEIGHTS = "weights.npy"
_STREAM = 0x5EED


class PriorityTree:
    """Weights of slots in the leaves of a binary tree whose nodes hold the sum of their children.

    The sums depend only on the current weights, not on the order in which they were set, so a tree
    with the same weights draws the same slots.
    """

    def __init__(self, capacity: int):
        """Makes a tree of zeros.

        Args:
          capacity: number of slots, at least 1.
        """
        self._num_leaves = 1 << (capacity - 1).bit_length()
        self._sums = np.zeros(2 * self._num_leaves)  # Node i has the children 2 i and 2 i + 1.

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._sums[1])

    def set(self, slots: np.ndarray, weights: np.ndarray) -> None:
        """Sets weights; if a slot occurs more than once, its last weight counts.

        Args:
          slots: [N] integers.
          weights: [N] not negative.
        """
        nodes = np.asarray(slots) + self._num_leaves
        self._sums[nodes] = weights
        while nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def get(self, slots: np.ndarray) -> np.ndarray:
        """Returns the weights of slots: [N] integers -> [N] float64."""
        return self._sums[np.asarray(slots) + self._num_leaves]

    def find(self, masses: np.ndarray) -> np.ndarray:
        """Finds the slots at which the cumulative weight passes the given masses.

        Args:
          masses: [N] in [0, total).

        Returns:
          [N] int64 slots, all with a positive weight.
        """
        nodes, masses = np.ones(len(masses), np.int64), np.array(masses, np.float64)
        for _ in range(self._num_leaves.bit_length() - 1):
            left, right = self._sums[2 * nodes], self._sums[2 * nodes + 1]
            # Rounding may leave a mass for a right child without weight.
            goes_right = (masses >= left) & (right > 0)
            masses -= np.where(goes_right, left, 0.0)
            nodes = 2 * nodes + goes_right
        return nodes - self._num_leaves


class LocalTable(abc.ABC):
    """A table in the process of its only actor and its learner, which take turns.

    It is also a part of a checkpoint, and the writer of the learner's priorities.

    Attributes:
      num_dropped_batches: batches of priorities that were not written; always 0.
    """

    def __init__(self) -> None:
        """Makes a table for a learner that is made later."""
        self._demand = LearnerDemand(1, 1, 1)
        self._pipelines: list[queue.SimpleQueue] = []
        self.num_dropped_batches = 0

    # For actors: the part of `reverb.Client` that writes items.

    def trajectory_writer(self, num_keep_alive_refs: int) -> "_Writer":
        """Opens a writer of items, with the methods of `reverb.TrajectoryWriter`."""
        return _Writer(self, num_keep_alive_refs)

    @abc.abstractmethod
    def insert(self, item: Any, priority: float) -> None:
        """Inserts an item."""

    # For the learner.

    @abc.abstractmethod
    def make_input_fn(self, layout: Any, demand: LearnerDemand) -> Callable[[Any], Any]:
        """Makes the learner's `input_fn`, whose batches are drawn by `feed`.

        Args:
          layout: the layout of the items, a `Layout` or an `UnrollLayout`.
          demand: how much the learner takes at a time.

        Returns:
          A function from an `InputContext` to a dataset of `Sample`s, called once per replica.
        """

    def _input_fn(self, demand: LearnerDemand, spec: Any, unpack: Any) -> Callable[[Any], Any]:
        """Makes an `input_fn` of batches that `_draw` returns.

        Args:
          demand: see `make_input_fn`.
          spec: nest of `tf.TensorSpec` of a batch.
          unpack: such a batch -> `Sample`.
        """
        self._demand = demand

        def input_fn(context: Any) -> tf.data.Dataset:
            del context
            batches: queue.SimpleQueue = queue.SimpleQueue()
            self._pipelines.append(batches)
            dataset = tf.data.Dataset.from_generator(
                lambda: iter(batches.get, None), output_signature=spec
            )
            return dataset.map(tf.autograph.experimental.do_not_convert(unpack))

        return input_fn

    @property
    def steps_per_call(self) -> int:
        """Learner steps for which `feed` draws batches."""
        return self._demand.steps_per_call

    @abc.abstractmethod
    def is_call_due(self) -> bool:
        """Whether the table has enough items for the next call of the learner."""

    def feed(self) -> None:
        """Draws the batches of one call of the learner and hands them to its input."""
        for _ in range(self._demand.steps_per_call):
            for pipeline in self._pipelines:
                pipeline.put(self._draw(self._demand.per_replica_batch_size))

    @abc.abstractmethod
    def _draw(self, count: int) -> Any:
        """Draws a batch of items."""

    def write(self, batches: Sequence[tuple[Any, Any]]) -> None:
        """Writes priorities back, if there are any; see `agents.replay.priorities.Priorities`."""
        del batches

    def close(self) -> None:
        """Ends the learner's input."""
        for pipeline in self._pipelines:
            pipeline.put(None)
        self._pipelines.clear()

    # As a part of a checkpoint.

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the items and whatever else the next draws depend on."""

    @abc.abstractmethod
    def restore(self, folder: Path) -> None:
        """Reads what `save` wrote."""


class LocalReplay(LocalTable):
    """A table of rows, prioritized or uniform; the oldest rows leave first.

    It behaves like a Reverb table with the same settings, except that a learner step is due exactly
    when the ratio of samples to inserts allows it, without a tolerance.
    """

    def __init__(self, info: Any, seed: int):
        """Makes an empty table.

        Args:
          info: the info of the Reverb table that it replaces, `reverb.Table.info`.
          seed: the seed of the draws.
        """
        super().__init__()
        self._max_size = int(info.max_size)
        sampler = info.sampler_options
        self._exponent = (
            sampler.prioritized.priority_exponent if sampler.HasField("prioritized") else None
        )
        self._min_size = int(info.rate_limiter_info.min_size_to_sample)
        self._samples_per_insert = info.rate_limiter_info.samples_per_insert
        self._random = np.random.default_rng([seed, _STREAM])
        self._tree = PriorityTree(self._max_size)
        self._rows = np.empty(0, np.float32)
        self._num_inserted = 0
        self._num_sampled = 0

    def insert(self, item: Any, priority: float) -> None:
        """Inserts a row [width] float32, or a window of rows [L, width], in place of the oldest."""
        row = np.asarray(item)
        if not self._num_inserted:
            self._rows = np.empty((self._max_size, *row.shape), np.float32)
        slot = self._num_inserted % self._max_size
        self._rows[slot] = row
        self._tree.set(np.array([slot]), self._weights(np.array([priority])))
        self._num_inserted += 1

    def make_input_fn(self, layout: Layout, demand: LearnerDemand) -> Callable[[Any], Any]:
        """See `LocalTable`.

        Raises:
          ValueError: if an item has several transitions.
        """
        if layout.transitions_per_item != 1:
            raise ValueError(f"expected items of one transition, got {layout.transitions_per_item}")
        size = demand.per_replica_batch_size
        spec = (
            tf.TensorSpec([size], tf.uint64),
            tf.TensorSpec([size], tf.float64),
            tf.TensorSpec([size], tf.int64),
            tf.TensorSpec([size, *layout.signature.shape], tf.float32),
        )

        def unpack(keys: Any, probabilities: Any, table_size: Any, rows: Any) -> Sample:
            return Sample(keys, probabilities, table_size, layout.unpack(rows))

        return self._input_fn(demand, spec, unpack)

    def is_call_due(self) -> bool:
        """Whether the table has enough rows for the next call of the learner."""
        allowed = (self._num_inserted - self._min_size) * self._samples_per_insert
        return (
            self._num_inserted >= self._min_size
            and self._num_sampled + self._demand.transitions_per_call <= allowed
        )

    def feed(self) -> None:
        """See `LocalTable`."""
        super().feed()
        self._num_sampled += self._demand.transitions_per_call

    def write(self, batches: Sequence[tuple[Any, Any]]) -> None:
        """Writes priorities back, immediately; see `agents.replay.priorities.PriorityWriter`."""
        keys = np.concatenate([np.ravel(keys) for keys, _ in batches]).astype(np.int64)
        priorities = np.concatenate([np.ravel(each) for _, each in batches])
        self._tree.set(keys, self._weights(for_table(priorities)))

    def save(self, folder: Path) -> None:
        """Writes the rows, their weights and the state of the draws."""
        size = self._size
        np.save(folder / _ROWS, self._rows[:size])
        np.save(folder / _WEIGHTS, self._tree.get(np.arange(size)))
        state = {
            "inserted": self._num_inserted,
            "sampled": self._num_sampled,
            "random": self._random.bit_generator.state,
        }
        (folder / _STATE).write_text(json.dumps(state), encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Reads what `save` wrote."""
        rows = np.load(folder / _ROWS)
        self._rows = np.empty((self._max_size, *rows.shape[1:]), np.float32)
        self._rows[: len(rows)] = rows
        if len(rows):
            self._tree.set(np.arange(len(rows)), np.load(folder / _WEIGHTS))
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        self._num_inserted, self._num_sampled = state["inserted"], state["sampled"]
        self._random.bit_generator.state = state["random"]

    @property
    def _size(self) -> int:
        return min(self._num_inserted, self._max_size)

    def _weights(self, priorities: np.ndarray) -> np.ndarray:
        """Returns the weights in proportion to which rows are drawn."""
        return np.ones_like(priorities) if self._exponent is None else priorities**self._exponent

    def _draw(self, count: int) -> tuple[np.ndarray, ...]:
        """Draws rows with replacement: keys, probabilities, sizes of the table, rows."""
        total = self._tree.total
        slots = self._tree.find(self._random.random(count) * total)
        probabilities = self._tree.get(slots) / total
        sizes = np.full(count, self._size, np.int64)
        # The slot serves as the key: no row leaves between its draw and the update of its priority.
        return slots.astype(np.uint64), probabilities, sizes, self._rows[slots]


class LocalQueue(LocalTable):
    """A queue of items, each of which is drawn once, the oldest first."""

    def __init__(self) -> None:
        """Makes an empty queue."""
        super().__init__()
        self._items: list[Any] = []  # Nests of arrays.

    def insert(self, item: Any, priority: float) -> None:
        """See `LocalTable`."""
        del priority
        self._items.append(item)

    def make_input_fn(self, layout: Any, demand: LearnerDemand) -> Callable[[Any], Any]:
        """See `LocalTable`."""
        spec = tree.map_structure(
            lambda one: tf.TensorSpec([demand.per_replica_batch_size, *one.shape], one.dtype),
            layout.signature,
        )
        return self._input_fn(demand, spec, lambda items: unpacked(layout, items))

    def is_call_due(self) -> bool:
        """See `LocalTable`."""
        return len(self._items) >= self._demand.transitions_per_call

    def _draw(self, count: int) -> Any:
        drawn, self._items = self._items[:count], self._items[count:]
        return tree.map_structure(lambda *each: np.stack(each), *drawn)

    def save(self, folder: Path) -> None:
        """See `LocalTable`."""
        JsonValue(self._items).save(folder)

    def restore(self, folder: Path) -> None:
        """See `LocalTable`."""
        JsonPart(list, lambda items: setattr(self, "_items", items)).restore(folder)


def make(info: Any, seed: int) -> LocalTable:
    """Makes a local table: a queue if its items are drawn once, otherwise a replay.

    Args:
      info: the info of the Reverb table that it replaces, `reverb.Table.info`.
      seed: the seed of the draws.
    """
    return LocalQueue() if info.max_times_sampled == 1 else LocalReplay(info, seed)


class _Writer:
    """Writes each item immediately."""

    def __init__(self, table: LocalTable, num_kept: int):
        self._table, self._num_kept = table, num_kept
        self._steps: list[Any] = []
        self.history: Any = []

    def configure(self, path: tuple, num_keep_alive_refs: int, max_chunk_length: int) -> None:
        """Does nothing: there are no chunks."""

    def append(self, step: Any) -> None:
        self._steps = [*self._steps, step][-self._num_kept :]
        self.history = tree.map_structure(lambda *each: list(each), *self._steps)

    def create_item(self, table: str, priority: float, trajectory: Any) -> None:
        del table
        self._table.insert(trajectory, priority)

    def flush(self, block_until_num_items: int, timeout_ms: int) -> None:
        """Does nothing: every row is in the table already."""

    def close(self) -> None:
        """Does nothing."""
