"""Writes priorities back to the table without making the learner wait."""

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import reverb
import tensorflow as tf

from agents.replay.table import batch_parts

_LOG = logging.getLogger("agents")
# Calls of the learner whose priorities may be queued before the oldest are dropped.
_MAX_QUEUED_CALLS = 8

# Reverb never samples an item of priority 0; an item that looks learned keeps a small chance.
_MIN_PRIORITY = 1e-3


def for_table(priorities: Any) -> np.ndarray:
    """Returns priorities that a table accepts.

    Reverb rejects NaN. It accepts infinity, but then gives samples the probability 0. If the
    learner has diverged, its next save ends the run with the name of a variable.

    Args:
      priorities: float32 tensor or array.

    Returns:
      float64 array of the same shape: at least 1e-3, which also replaces NaN and infinity.
    """
    wide = np.asarray(priorities, np.float64)
    return np.where(np.isfinite(wide), np.maximum(wide, _MIN_PRIORITY), _MIN_PRIORITY)


class Priorities(Protocol):
    """Writes the learner's priorities to the replay.

    Attributes:
      num_dropped_batches: batches that were not written.
    """

    num_dropped_batches: int

    def write(self, batches: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> None:
        """Writes the priorities of one call of the learner.

        Args:
          batches: from each replica, keys (uint64 of any shape) and priorities (float32 of the same
            shape, not negative).
        """
        ...

    def close(self) -> None:
        """Writes the remaining priorities."""
        ...


class PriorityWriter:
    """Writes priorities in batches from a separate thread.

    A late priority is only slightly stale, so a busy table never delays the learner: when the queue
    is full, the oldest batch is dropped and counted.
    """

    def __init__(self, server_addresses: Sequence[str], online_fraction: float = 1.0):
        """Starts the thread.

        Args:
          server_addresses: "host:port" of each replay server; batches hold parts of their tables,
            as `agents.replay.table.make_input_fn` makes them.
          online_fraction: see `agents.replay.table.batch_parts`.
        """
        self._online_fraction = online_fraction
        self._clients = [
            reverb.TFClient(address, name="priorities") for address in server_addresses
        ]
        self._queue: queue.Queue = queue.Queue(maxsize=_MAX_QUEUED_CALLS)
        self.num_dropped_batches = 0
        """Batches dropped because the table could not keep up."""
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="priorities", daemon=True)
        self._thread.start()

    def write(self, batches: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> None:
        """Queues the priorities of one call of the learner; returns immediately.

        Args:
          batches: from each replica, keys ([..., B] uint64) and priorities (float32 of the same
            shape, not negative).

        Raises:
          RuntimeError: if an earlier batch could not be written.
        """
        if self._error is not None:
            raise RuntimeError("priorities could not be written to the replay") from self._error
        while True:
            try:
                self._queue.put_nowait(batches)
                return
            except queue.Full:
                try:
                    self._queue.get_nowait()
                    self.num_dropped_batches += 1
                except queue.Empty:
                    pass

    def _run(self) -> None:
        while True:
            batches = self._queue.get()
            if batches is None:
                return
            try:
                batch_size = batches[0][0].shape[-1]
                parts = batch_parts(batch_size, len(self._clients), self._online_fraction)
                sizes = [part.size for part in parts]
                keys = _divide([k for k, _ in batches], sizes)
                priorities = _divide([p for _, p in batches], sizes)
                for part, k, p in zip(parts, keys, priorities, strict=True):
                    self._clients[part.server].update_priorities(part.table, k, for_table(p))
            except Exception as error:  # `write` raises it in the learner's thread.
                self._error = error
                return

    def close(self, timeout: float = 5.0) -> None:
        """Writes what is queued and ends the thread; waits up to twice `timeout` seconds."""
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)
        if self._error is not None:  # No `write` will raise it.
            _LOG.warning("the last priorities were not written to the replay: %s", self._error)


def _divide(batches: Sequence[tf.Tensor], sizes: Sequence[int]) -> list[tf.Tensor]:
    """Returns the elements of each part of the batches: n x [..., B] -> one [N] per part."""
    split = [tf.split(batch, sizes, axis=-1) for batch in batches]
    return [
        tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
        for parts in zip(*split, strict=True)
    ]
