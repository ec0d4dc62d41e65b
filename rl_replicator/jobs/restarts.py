"""Restarts a job after failures: how often, and after which pauses."""

import dataclasses
import threading
from collections.abc import Callable


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


class Restarts:
    """Counts restarts, up to a limit, with pauses that double."""

    def __init__(self, limit: int, first_pause: float = 1.0, longest_pause: float = 30.0):
        """Counts none yet.

        Args:
          limit: greatest number of restarts.
          first_pause: seconds before the first restart.
          longest_pause: greatest number of seconds before a restart.
        """
        self._limit = limit
        self._first = first_pause
        self._longest = longest_pause
        self._count = 0

    def next_delay(self) -> float | None:
        """Counts a restart.

        Returns:
          Seconds to wait before it; None if the limit is reached.
        """
        if self._count == self._limit:
            return None
        self._count += 1
        return min(self._longest, self._first * 2 ** (self._count - 1))

    def progress(self) -> str:
        """Returns the number of the last restart and the limit, for messages."""
        return f"restart {self._count} of {self._limit}"


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
        self._ended = threading.Event()

    def end(self) -> None:
        """Makes `run` stop the job and return. Can be called by any thread or signal handler."""
        self._ended.set()

    def run(self) -> int | None:
        """Runs the job to its end.

        Returns:
          The exit status of the last outcome; None after `end`.
        """
        while True:
            try:
                self._start()
                outcome = self._watch()
            finally:
                self._stop()
            if outcome is None:
                return None
            delay = None if outcome.is_final else self._restarts.next_delay()
            if delay is None:
                if outcome.status:
                    self._report(f"{outcome.reason}; not restarting")
                return outcome.status
            self._report(
                f"{outcome.reason}; restarting the whole job in {delay:g} s "
                f"({self._restarts.progress()})"
            )
            if self._ended.wait(delay):
                return None

    def _watch(self) -> Outcome | None:
        while not self._ended.wait(0.1):
            outcome = self._poll()
            if outcome is not None:
                return outcome
        return None
