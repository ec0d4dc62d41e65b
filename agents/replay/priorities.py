"""Writes priorities back to the table without making the learner wait."""

import queue
import threading
from collections.abc import Sequence
from typing import Protocol

import reverb
import tensorflow as tf

from agents.replay.transitions import TABLE

# Calls of the learner whose priorities may be queued before the oldest are dropped.
_MAX_QUEUED_CALLS = 8

# Reverb never samples an item of priority 0; an item that looks learned keeps a small chance.
MIN_PRIORITY = 1e-3


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
        """Writes what is left."""
        ...


class PriorityWriter:
    """Writes priorities in batches from a thread of its own.

    A late priority is only slightly stale, so a busy table never delays the learner: when the queue
    is full, the oldest batch is dropped and counted.
    """

    def __init__(self, server_address: str):
        """Starts the thread.

        Args:
          server_address: "host:port" of the replay server.
        """
        self._client = reverb.TFClient(server_address, name="priorities")
        self._queue: queue.Queue = queue.Queue(maxsize=_MAX_QUEUED_CALLS)
        self.num_dropped_batches = 0
        """Batches dropped because the table could not keep up."""
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="priorities", daemon=True)
        self._thread.start()

    def write(self, batches: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> None:
        """Queues the priorities of one call of the learner; returns at once.

        Args:
          batches: from each replica, keys (uint64 of any shape) and priorities (float32 of the same
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
                keys = tf.concat([tf.reshape(k, [-1]) for k, _ in batches], 0)
                priorities = tf.concat([tf.reshape(p, [-1]) for _, p in batches], 0)
                self._client.update_priorities(
                    TABLE, keys, tf.cast(tf.maximum(priorities, MIN_PRIORITY), tf.float64)
                )
            except Exception as error:  # Handed to the learner's thread.
                self._error = error
                return

    def close(self, timeout: float = 5.0) -> None:
        """Writes what is queued and ends the thread, within `timeout` seconds."""
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)
