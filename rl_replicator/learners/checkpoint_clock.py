"""When to save, agreed between the processes of a job."""

import time

import numpy as np

from rl_replicator.replicator import Replicator

# Saving may take at most this share of the time.
_SAVING_SHARE = 0.05
_SECONDS_BETWEEN_QUESTIONS = 1.0


class CheckpointClock:
    """Tells all processes of a job, after the same call, that a checkpoint is due.

    Their clocks differ, so they have to ask one another, which waits for the slowest. They do so
    about once a second, however short a call is.
    """

    def __init__(self, replicator: Replicator, pause: float):
        """Starts the clock.

        Args:
          replicator: whose processes agree.
          pause: seconds between checkpoints; longer if saving takes more than a twentieth of it.
        """
        self._replicator = replicator
        self._pause = pause
        self._saved_at = self._asked_at = time.monotonic()
        self._saving_seconds = 0.0
        self._calls_between_questions = 1
        self._calls = 0

    def is_due(self) -> bool:
        """Whether to save now. Called by all processes after each of their calls."""
        if self._replicator.num_processes == 1:
            return self._is_due_here()
        self._calls += 1
        if self._calls < self._calls_between_questions:
            return False
        seconds = (time.monotonic() - self._asked_at) / self._calls
        mine = np.array([self._is_due_here(), seconds])
        is_due, slowest = self._replicator.reduce("max", mine)
        # At most twice as many as the last time, because the first calls are no measure.
        self._calls_between_questions = max(
            1, min(2 * self._calls, int(_SECONDS_BETWEEN_QUESTIONS / slowest))
        )
        self._calls, self._asked_at = 0, time.monotonic()
        return bool(is_due)

    def note_save(self, seconds: float) -> None:
        """Starts again from a checkpoint that has taken `seconds` to write."""
        self._saved_at = time.monotonic()
        self._saving_seconds = seconds

    def _is_due_here(self) -> bool:
        pause = max(self._pause, self._saving_seconds / _SAVING_SHARE)
        return time.monotonic() - self._saved_at > pause
