"""Limits restarts after failures, and computes the pauses before them."""


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
        """Starts with a count of 0.

        Args:
          limit: maximum number of restarts in a row.
          first_pause: seconds before the first restart.
          longest_pause: maximum number of seconds before a restart.
          reset_after: seconds after which a process that runs counts as recovered: if it fails
            later, the count starts again from 0. It must be well above the time that it takes to
            notice a failure, such as the `call_timeout` of a `MultiWorkerReplicator`.
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
        # The exponent is limited, because a larger one would overflow.
        return min(self._longest, self._first * 2.0 ** min(self.count - 1, 30))

    def progress(self) -> str:
        """Returns the number of the last restart and the limit, for messages."""
        return f"restart {self.count} of {self._limit}"
