"""How many updates may come between a step's reading of the variables and its own update."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Staleness:
    """Updates of others between a step's reading of the variables and its own, over many steps."""

    steps: int = 0
    total: int = 0
    max: int = 0

    @property
    def mean(self) -> float:
        return self.total / self.steps if self.steps else 0.0

    def plus(self, values: "list[int]") -> "Staleness":
        """With the staleness of more steps."""
        return Staleness(
            self.steps + len(values), self.total + sum(values), max([self.max, *values])
        )


@dataclasses.dataclass
class _Call:
    """A call that is open: begun, and not known to have ended.

    Attributes:
      updates: how many steps it takes.
      met: steps of the calls that were open together with it, for any time at all.
    """

    updates: int
    met: int


class Bound:
    """Decides whether one more call may begin.

    The updates of a call can only come between the reading and the update of another call's step
    if both calls are open at the same time, as the process sees that hands them out. So it is
    enough to count, for every open call, the steps of all that were open together with it.
    """

    def __init__(self, max_staleness: int | None, num_workers: int):
        """No call is open.

        Args:
          max_staleness: the bound; None for none but the length of the queue.
          num_workers: as many calls can make progress at a time.
        """
        self._max = max_staleness
        self._num_workers = num_workers
        self._open: dict[object, _Call] = {}

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def is_serial(self) -> bool:
        """Whether no step may be stale at all."""
        return self._max == 0

    def admits(self, updates: int) -> bool:
        """Whether a call of so many steps may begin now."""
        if self.num_open >= self._most_at_a_time(updates):
            return False
        if self._max is None:
            return True
        calls = self._open.values()
        return sum(call.updates for call in calls) <= self._max and all(
            call.met + updates <= self._max for call in calls
        )

    def open(self, key: object, updates: int) -> None:
        """Begins a call, which `admits` has allowed."""
        others = sum(call.updates for call in self._open.values())
        for call in self._open.values():
            call.met += updates
        self._open[key] = _Call(updates, others)

    def close(self, key: object) -> None:
        """Ends a call."""
        del self._open[key]

    def _most_at_a_time(self, updates: int) -> int:
        # Every worker has one call that runs and one that is ready to.
        full = 2 * self._num_workers
        if self._max is None:
            return full
        # A call that is one of n at any time meets n - 1 at its beginning and n - 1 until it ends,
        # if all take equally long. More than that makes them wait for one another, which pays
        # only as long as there are idle workers.
        calls = self._max // updates
        return max(min(self._num_workers, calls + 1), min(full, 1 + calls // 2))
