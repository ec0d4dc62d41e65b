"""Counts restarts after failures: how many are allowed, and after which pauses."""


class Restarts:
    """Counts restarts in a row, up to a limit, with pauses that double.

    Attributes:
      count: number of restarts in a row.
    """

    def __init__(
        self,
        limit: int,
        first_pause: float = 1.0,
        longest_pause: float = 30.0,
        reset_after: float = 900.0,
    ):
        """Counts none yet.

        Args:
          limit: greatest number of restarts in a row.
          first_pause: seconds before the first restart.
          longest_pause: greatest number of seconds before a restart.
          reset_after: what ran for longer than this before it failed, in seconds, has recovered:
            its restarts are counted anew. It must be well above the time in which a failure is
            noticed, such as the `call_timeout` of a `MultiWorkerReplicator`.
        """
        self.count = 0
        self._limit = limit
        self._first = first_pause
        self._longest = longest_pause
        self._reset_after = reset_after

    def next_pause(self, lived: float) -> float | None:
        """Counts a restart.

        Args:
          lived: seconds between the last start and the failure.

        Returns:
          Seconds to wait before the restart; None if the limit is reached.
        """
        if lived > self._reset_after:
            self.count = 0
        if self.count >= self._limit:
            return None
        self.count += 1
        # The exponent is limited, because floats are.
        return min(self._longest, self._first * 2.0 ** min(self.count - 1, 30))

    def progress(self) -> str:
        """Returns the number of the last restart and the limit, for messages."""
        return f"restart {self.count} of {self._limit}"
