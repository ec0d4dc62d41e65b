"""Where a node spends its time."""

import time
from collections.abc import Callable, Mapping
from typing import Any

# The time between two readings, under the name of a part.
TOTAL = "total"


class Stopwatch:
    """Adds up the seconds that methods of some objects take, while it runs.

    A timed call costs some microseconds, and none while the stopwatch is stopped: an actor lets it
    run for a sample of its steps only.
    """

    def __init__(self) -> None:
        """Is stopped, and times nothing yet."""
        self._methods: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = []
        self._seconds: dict[str, float] = {}
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
        now = {**self._seconds, **elsewhere, TOTAL: time.perf_counter()}
        grown = {part: seconds - self._taken.get(part, 0.0) for part, seconds in now.items()}
        self._taken = now
        return grown

    def stop(self) -> None:
        """Stops it; the methods are what they were."""
        for target, name, method, _ in self._methods:
            setattr(target, name, method)

    def _timed(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
        seconds, clock = self._seconds, time.perf_counter
        seconds.setdefault(part, 0.0)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = clock()
            try:
                return method(*args, **kwargs)
            finally:
                seconds[part] += clock() - started

        return timed


class TimeSplit:
    """Adds up the time of all nodes of each kind."""

    def __init__(self) -> None:
        """Knows of no time yet."""
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
        """Returns the share of each part in the time of its kind of node, as `actor_policy`."""
        return {
            f"{kind}_{part}": min(1.0, max(0.0, spent / seconds[TOTAL]))
            for kind, seconds in self._seconds.items()
            for part, spent in seconds.items()
            if part != TOTAL and seconds[TOTAL] > 0
        }
