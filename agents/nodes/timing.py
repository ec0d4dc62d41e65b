"""Where a node spends its time, and reports of its long waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

# The time between two readings, under the name of a part.
TOTAL = "total"
_LOG = logging.getLogger("agents")
_SECONDS_BETWEEN_LINES = 10.0
_MOST_SECONDS_BETWEEN_TICKS = 2.0


class Timing:
    """Adds up the seconds that one thread spends in the parts of its loop.

        with timing.part("step"):
            ...

    A part in progress counts up to now. Parts are not nested.
    """

    def __init__(self) -> None:
        """Starts now."""
        self._seconds: dict[str, float] = {}
        self._current: str | None = None
        self._since = 0.0
        self._taken: dict[str, float] = {TOTAL: time.perf_counter()}

    def part(self, name: str) -> _Part:
        """Returns a context, which may be entered repeatedly, whose time counts as part `name`."""
        self._seconds.setdefault(name, 0.0)
        return _Part(self, name)

    def begin(self, name: str) -> None:
        """Begins a part."""
        self._current, self._since = name, time.perf_counter()

    def end(self) -> None:
        """Ends the part that was begun."""
        if self._current is not None:
            self._seconds[self._current] += time.perf_counter() - self._since
        self._current = None

    def take(self, **elsewhere: float) -> dict[str, float]:
        """Returns the seconds of each part since the start or the last call, and the total time.

        Args:
          **elsewhere: seconds so far of parts that are measured elsewhere, by name.
        """
        if self._current is not None:
            name = self._current
            self.end()
            self.begin(name)
        now = {**self._seconds, **elsewhere, TOTAL: time.perf_counter()}
        grown = {part: seconds - self._taken.get(part, 0.0) for part, seconds in now.items()}
        self._taken = now
        return grown


class _Part:
    """The context of a part; a class, because a generator's context takes a microsecond more."""

    __slots__ = ("_name", "_timing")

    def __init__(self, timing: Timing, name: str):
        self._timing, self._name = timing, name

    def __enter__(self) -> None:
        self._timing.begin(self._name)

    def __exit__(self, *details: object) -> None:
        self._timing.end()


class TimedActor:
    """An `agents.agent.BatchActor` that times another one: parts "policy" and "insert"."""

    def __init__(self, actor: Any, timing: Timing):
        """Stores the actor.

        Args:
          actor: the actor.
          timing: takes the times.
        """
        self._actor = actor
        self._policy, self._insert = timing.part("policy"), timing.part("insert")

    def select_actions(self, observations: Sequence[Any]) -> Any:
        """Returns an action for each environment."""
        with self._policy:
            return self._actor.select_actions(observations)

    def begin(self, index: int, timestep: Any) -> None:
        """Observes the first time step of an episode."""
        with self._insert:
            self._actor.begin(index, timestep)

    def observe(self, index: int, action: Any, timestep: Any) -> None:
        """Observes an action and its outcome."""
        with self._insert:
            self._actor.observe(index, action, timestep)

    def update(self) -> None:
        """Calls the actor's method."""
        self._actor.update()


class StoppedError(Exception):
    """Ends a wait because the program stops."""


class WaitLog:
    """Logs a line every ten seconds of a wait."""

    def __init__(self, who: str, reason: Callable[[], str], stop: threading.Event):
        """Stores the texts.

        Args:
          who: the node's name in the log.
          reason: returns what it waits for and why; called when a line is due.
          stop: the node's stop event. Only the node's own thread can obtain it; any thread may wait
            for it.
        """
        self._who = who
        self._reason = reason
        self._stop = stop
        self._seen = self._counted = 0.0
        self._next_line = _SECONDS_BETWEEN_LINES

    def tick(self, waited: float) -> None:
        """Logs a line if one is due; to be called repeatedly during a wait.

        Args:
          waited: seconds since the wait began.

        Raises:
          StoppedError: if the program is stopping.
        """
        if self._stop.is_set():
            raise StoppedError
        if waited < self._seen:  # Another wait has begun.
            self._seen = self._counted = 0.0
            self._next_line = _SECONDS_BETWEEN_LINES
        # A suspended program (Ctrl-Z) wakes up much later: that time does not count.
        self._counted += min(waited - self._seen, _MOST_SECONDS_BETWEEN_TICKS)
        self._seen = waited
        if self._counted >= self._next_line:
            self._next_line += _SECONDS_BETWEEN_LINES
            _LOG.warning("%s has waited %.0f s for %s", self._who, self._counted, self._reason())
