"""Decides when to save a checkpoint, in agreement between the processes of a job."""

import time

import numpy as np

from rl_replicator.replicator import Replicator

# Saving takes at most this share of the time.
_SAVING_SHARE = 0.05
_SECONDS_BETWEEN_QUESTIONS = 1.0


class CheckpointClock:
    """Tells all processes of a job, after the same call, that a checkpoint is due.

    The processes' clocks differ, so they must communicate, which waits for the slowest of them.
    They do so about once per second, however short a call is.
    """

    def __init__(self, replicator: Replicator, pause: float):
        """Starts the clock.

        Args:
          replicator: replicator of the processes that must agree.
          pause: seconds between checkpoints; longer if saving takes more than 5 % of them.
        """
        self._replicator = replicator
        self._pause = pause
        self._saved_at = self._asked_at = time.monotonic()
        self._saving_seconds = 0.0
        self._calls_between_questions = 1
        self._calls = 0

    def is_due(self) -> bool:
        """Returns whether to save now. All processes must call it after each of their calls."""
        if self._replicator.num_processes == 1:
            return self._is_due_here()
        self._calls += 1
        if self._calls < self._calls_between_questions:
            return False
        seconds = (time.monotonic() - self._asked_at) / self._calls
        local = np.array([self._is_due_here(), seconds])
        is_due, slowest = self._replicator.reduce("max", local)
        # At most doubled each time, because the first calls are slower than later ones.
        self._calls_between_questions = max(
            1, min(2 * self._calls, int(_SECONDS_BETWEEN_QUESTIONS / slowest))
        )
        self._calls, self._asked_at = 0, time.monotonic()
        return bool(is_due)

    def note_save(self, seconds: float) -> None:
        """Restarts the clock after a checkpoint.

        Args:
          seconds: time that it took to save the checkpoint.
        """
        self._saved_at = time.monotonic()
        self._saving_seconds = seconds

    def _is_due_here(self) -> bool:
        pause = max(self._pause, self._saving_seconds / _SAVING_SHARE)
        return time.monotonic() - self._saved_at > pause
