"""Runs a job, and restarts it after failures."""

import dataclasses
import time
from collections.abc import Callable

from rl_replicator.processes.restarts import Restarts

_POLL_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
      status: exit status to end with if the job is not restarted; 0 if it is complete.
      reason: short text for messages.
      is_final: whether a restart would not help.
    """

    status: int
    reason: str
    is_final: bool = False


class RestartLoop:
    """Runs a job, and restarts all of it when a part fails.

    It does not depend on how the job runs: the caller passes functions that start, poll and stop
    it. The thread that calls `run` calls all of them.
    """

    def __init__(
        self,
        start: Callable[[], None],
        poll: Callable[[], Outcome | None],
        stop: Callable[[], None],
        restarts: Restarts,
        report: Callable[[str], None],
    ):
        """Starts nothing yet.

        Args:
          start: starts the job; called again after `stop` for a restart.
          poll: returns None while the job runs, and its outcome afterwards. Must not block; called
            ten times per second.
          stop: ends all parts of the job, and waits until they have ended.
          restarts: limits the restarts.
          report: prints a line about a restart.
        """
        self._start = start
        self._poll = poll
        self._stop = stop
        self._restarts = restarts
        self._report = report
        # Not an event: a signal handler would wait for a lock that the interrupted thread may hold.
        self._has_ended = False

    def end(self) -> None:
        """Makes `run` stop the job and return. Can be called by any thread or signal handler."""
        self._has_ended = True

    def run(self) -> int | None:
        """Runs the job to its end.

        Returns:
          The exit status of the last outcome; None after `end`.
        """
        while True:
            started = time.monotonic()
            try:
                self._start()
                outcome = self._watch()
            finally:
                self._stop()
            if outcome is None:
                return None
            lived = time.monotonic() - started
            pause = None if outcome.is_final else self._restarts.next_pause(lived)
            if pause is None:
                if outcome.status:
                    self._report(f"{outcome.reason}; not restarting")
                return outcome.status
            self._report(
                f"{outcome.reason}; restarting the whole job in {pause:g} s "
                f"({self._restarts.progress()})"
            )
            if not self._sleep(pause):
                return None

    def _watch(self) -> Outcome | None:
        while self._sleep(_POLL_SECONDS):
            outcome = self._poll()
            if outcome is not None:
                return outcome
        return None

    def _sleep(self, seconds: float) -> bool:
        """Sleeps; returns True after the given time, or False as soon as `end` is called."""
        deadline = time.monotonic() + seconds
        while not self._has_ended and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_SECONDS))
        return not self._has_ended
