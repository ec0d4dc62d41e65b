"""The staleness of asynchronous steps, and its bound.

A step's staleness is the number of updates by other steps between its read of the variables and its
own update.
"""

import dataclasses

import tensorflow as tf

_MOST_UPDATES = 2**62


@dataclasses.dataclass(frozen=True)
class Staleness:
    """The staleness of several steps.

    Attributes:
      steps: number of steps.
      total: sum of their staleness.
      max: greatest staleness of a step.
    """

    steps: int = 0
    total: int = 0
    max: int = 0

    @property
    def mean(self) -> float:
        """Mean staleness of a step; 0 without steps."""
        return self.total / self.steps if self.steps else 0.0


class Meter:
    """Measures the staleness of steps on a parameter server, without a reply to the worker."""

    def __init__(self, version: tf.Variable):
        """Creates a variable on the same server as `version`.

        Args:
          version: int64 scalar on a parameter server, the number of updates of all steps.
        """
        self._version = version
        with tf.init_scope(), tf.device(version.device):
            # Number of steps, sum and maximum of their staleness.
            self._counts = tf.Variable([0, 0, 0], dtype=tf.int64, trainable=False, name="staleness")

    def owns(self, variable: tf.Variable) -> bool:
        """Whether it is a variable of the meter."""
        return variable is self._version or variable is self._counts

    def before(self) -> tf.Tensor:
        """Returns the number of updates so far; traced before a step."""
        return self._version.read_value()

    def after(self, before: tf.Tensor) -> None:
        """Counts a step's update, and the updates by others during the step; traced after it.

        Args:
          before: return value of `before`.
        """
        with tf.device(self._version.device):
            # Reads and increments in one operation, so that every update is counted exactly once.
            now = tf.raw_ops.ResourceCountUpTo(
                resource=self._version.handle, limit=_MOST_UPDATES, T=tf.int64
            )
            stale = now - before
            self._counts.assign_add(tf.stack([1, stale, 0]), read_value=False)
            tf.raw_ops.ResourceScatterNdMax(
                ref=self._counts.handle, indices=[[2]], updates=[stale], use_locking=True
            )

    def read(self) -> Staleness:
        """Returns the staleness of all steps so far."""
        return Staleness(*self._counts.numpy().tolist())


@dataclasses.dataclass
class _OpenCall:
    """A call that has begun and is not known to have ended.

    Attributes:
      updates: number of steps that it takes.
      met: number of steps of all calls that have been open at the same time as this one.
    """

    updates: int
    met: int


class Bound:
    """Decides whether another call may begin.

    An update of one call can come between the read and the update of another call's step only if
    both calls are open at the same time, as seen by the coordinator. So it suffices to count, for
    every open call, the steps of all calls that have been open at the same time.
    """

    def __init__(self, max_staleness: int | None, num_workers: int):
        """Starts without open calls.

        Args:
          max_staleness: the bound; None to limit only the number of open calls.
          num_workers: number of calls that can run at the same time.
        """
        self._max = max_staleness
        self._num_workers = num_workers
        self._open: dict[object, _OpenCall] = {}

    @property
    def num_open(self) -> int:
        """Number of open calls."""
        return len(self._open)

    @property
    def is_serial(self) -> bool:
        """Whether no step may be stale at all."""
        return self._max == 0

    def admits(self, updates: int) -> bool:
        """Returns whether a call may begin now.

        Args:
          updates: number of steps of the call.
        """
        if self.num_open >= self._most_at_a_time(updates):
            return False
        if self._max is None:
            return True
        calls = self._open.values()
        return sum(call.updates for call in calls) <= self._max and all(
            call.met + updates <= self._max for call in calls
        )

    def open(self, key: object, updates: int) -> None:
        """Records the beginning of a call, which `admits` has allowed.

        Args:
          key: identifies the call.
          updates: number of steps of the call.
        """
        others = sum(call.updates for call in self._open.values())
        for call in self._open.values():
            call.met += updates
        self._open[key] = _OpenCall(updates, others)

    def close(self, key: object) -> None:
        """Records the end of a call.

        Args:
          key: see `open`.
        """
        del self._open[key]

    def _most_at_a_time(self, updates: int) -> int:
        # Every worker has one running and one queued call.
        full = 2 * self._num_workers
        if self._max is None:
            return full
        # If n calls of equal duration are always open, a call meets n - 1 others when it begins,
        # and n - 1 more until it ends. More open calls would wait for one another, which is only
        # worthwhile while workers are idle.
        calls = self._max // updates
        return max(min(self._num_workers, calls + 1), min(full, 1 + calls // 2))
