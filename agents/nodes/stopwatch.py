"""Where a node spends its time."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

# The time between two readings, under the name of a part.
TOTAL = "total"


class Stopwatch:
    """Adds up the seconds that methods of some objects take, while it runs.

    A call in progress counts up to now: it may wait for long, and then be cancelled. Timing costs
    some microseconds per call, but nothing while the stopwatch is stopped: an actor runs it only
    for a sample of its steps.
    """

    def __init__(self) -> None:
        """Creates a stopped stopwatch, which times no methods yet."""
        self._methods: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = []
        # The ends of all calls, minus their starts; and the number of calls that have not ended.
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()  # One thread may take the times that others add.
        self._taken: dict[str, float] = {}

    def attach(self, target: Any, parts: Mapping[str, str]) -> None:
        """Times methods of an object whenever the stopwatch runs.

        Args:
          target: the object; its methods are replaced on this instance.
          parts: name of a method -> part that its time counts as. A method that `target` lacks is
            left out.
        """
        for name, part in parts.items():
            if hasattr(target, name):
                method = getattr(target, name)
                self._methods.append((target, name, method, self._timed(method, part)))

    def start(self, **elsewhere: float) -> None:
        """Starts it.

        Args:
          **elsewhere: seconds so far of parts that are measured elsewhere, by name.
        """
        for target, name, _, timed in self._methods:
            setattr(target, name, timed)
        self.take(**elsewhere)

    def take(self, **elsewhere: float) -> dict[str, float]:
        """Returns the seconds of each part since the start or the last call, and the total time.

        Args:
          **elsewhere: as for `start`.
        """
        with self._lock:
            clock = time.perf_counter()
            timed = {
                part: spent + self._calls[part] * clock for part, spent in self._seconds.items()
            }
        now = {**timed, **elsewhere, TOTAL: clock}
        grown = {part: seconds - self._taken.get(part, 0.0) for part, seconds in now.items()}
        self._taken = now
        return grown

    def stop(self) -> None:
        """Stops it, and restores the original methods."""
        for target, name, method, _ in self._methods:
            setattr(target, name, method)

    def _timed(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
        seconds, calls, clock = self._seconds, self._calls, time.perf_counter
        seconds.setdefault(part, 0.0)
        calls.setdefault(part, 0)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                seconds[part] -= clock()
                calls[part] += 1
            try:
                return method(*args, **kwargs)
            finally:
                with self._lock:
                    seconds[part] += clock()
                    calls[part] -= 1

        return timed


class TimeSplit:
    """Adds up the time of all nodes of each kind."""

    def __init__(self) -> None:
        """Starts without any time."""
        self._seconds: dict[str, dict[str, float]] = {}

    def add(self, kind: str, grown: Mapping[str, float]) -> None:
        """Takes the report of a node.

        Args:
          kind: of the node, "actor" or "learner".
          grown: the result of `Stopwatch.take`.
        """
        seconds = self._seconds.setdefault(kind, {})
        for part, more in grown.items():
            seconds[part] = seconds.get(part, 0.0) + more

    def shares(self) -> dict[str, float]:
        """Returns each part's share of the time of its kind of node, named like `actor_policy`."""
        return {
            f"{kind}_{part}": min(1.0, max(0.0, spent / seconds[TOTAL]))
            for kind, seconds in self._seconds.items()
            for part, spent in seconds.items()
            if part != TOTAL and seconds[TOTAL] > 0
        }
