"""When to start something again, and how often; whatever it is."""

import dataclasses
import threading
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a job came to.

    Attributes:
      status: to end with, if it is not started again; 0 if it is done.
      reason: in a few words, for people.
      is_final: starting it again would not help.
    """

    status: int
    reason: str
    is_final: bool = False


class Restarts:
    """A limited number of restarts, with pauses that double up to a limit."""

    def __init__(self, limit: int, first_pause: float = 1.0, longest_pause: float = 30.0):
        self._limit = limit
        self._first = first_pause
        self._longest = longest_pause
        self._count = 0

    def next_delay(self) -> float | None:
        """Counts a restart. Seconds to wait before it; None if there were enough."""
        if self._count == self._limit:
            return None
        self._count += 1
        return min(self._longest, self._first * 2 ** (self._count - 1))

    def told(self) -> str:
        return f"restart {self._count} of {self._limit}"


class Supervisor:
    """Starts a job, watches it, and starts all of it again when a part has failed.

    It knows nothing of processes: an engine that runs nodes in its own way passes its own
    functions. All are called by the thread that calls `run`.
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
          start: begins the job; again after a `stop`.
          poll: returns None while the job runs, and soon; called ten times a second.
          stop: ends whatever still runs, and returns when nothing does.
          restarts: how often to start again.
          report: is told what happens, a line each.
        """
        self._start = start
        self._poll = poll
        self._stop = stop
        self._restarts = restarts
        self._report = report
        self._ended = threading.Event()

    def end(self) -> None:
        """Has `run` stop the job and return. From any thread, or a signal handler."""
        self._ended.set()

    def run(self) -> int | None:
        """Runs the job to its end.

        Returns:
          The status of the last outcome; None after `end`.
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
                    self._report(f"{outcome.reason}; not started again")
                return outcome.status
            self._report(
                f"{outcome.reason}; starting the whole job again in {delay:g} s "
                f"({self._restarts.told()})"
            )
            if self._ended.wait(delay):
                return None

    def _watch(self) -> Outcome | None:
        while not self._ended.wait(0.1):
            outcome = self._poll()
            if outcome is not None:
                return outcome
        return None
