"""A node of a launched program, as the supervisor and the engines see it; its failures."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.nodes import base, python

# Failures within this many seconds of the first one are candidates for the root cause. On a busy
# machine, the end of a process may be noticed a second after its victim's report.
_ROOT_WINDOW_SECS = 3.0


class Worker(abc.ABC):
    """One running incarnation of a node. Methods return immediately; only `start` may raise.

    Attributes:
      is_killable: Whether `kill` ends the node regardless of what its code does.
    """

    is_killable = True

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped the node's process, as far as this machine can tell."""
        return False

    @property
    def silent_secs(self) -> float:
        """Seconds since the last sign of life of the node; 0 if it need not give any."""
        return 0.0

    @abc.abstractmethod
    def start(self) -> None:
        """Starts the node."""

    @abc.abstractmethod
    def notify_stop(self) -> None:
        """Asks the node to leave its `run()`."""

    @abc.abstractmethod
    def release(self) -> None:
        """Tells the node that its server is no longer needed."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Kills the node and what it has started, as far as that is possible."""

    def send_address(self, key: str, address: str) -> None:  # noqa: B027
        """Sends the node the address ("host:port") at which the owner of `key` serves."""

    def end_frozen(self, secs: float) -> None:  # noqa: B027
        """Kills a node that has shown no sign of life for `secs` seconds."""

    def close(self) -> None:  # noqa: B027
        """Frees the launcher's resources for the node, which has ended."""


class Restarts:
    """Counts the restarts of a node, or of a group, in a row.

    Attributes:
      count: Number of restarts in a row.
    """

    def __init__(self, policy: base.RestartPolicy):
        self.count = 0
        self._doublings = 0  # Of the pause.
        self._policy = policy

    def next_pause(self, lived_secs: float) -> float | None:
        """Counts a restart.

        Args:
          lived_secs: Seconds between the last start and the failure.

        Returns:
          Seconds to wait before the restart; None if the limit is reached.
        """
        if lived_secs > self._policy.reset_after_secs:
            self.count = 0
        if self.count >= self._policy.max_restarts:
            return None
        is_quick = self.count > 0 and lived_secs <= self._policy.max_backoff_secs
        self._doublings = self._doublings + 1 if is_quick else 0
        self.count += 1
        # The exponent is limited, because a larger one would overflow.
        pause = self._policy.initial_backoff_secs * 2.0 ** min(self._doublings, 30)
        return min(self._policy.max_backoff_secs, pause)


@dataclasses.dataclass
class Member:
    """A node of the program and its state in the supervisor.

    Attributes:
      launch_config: The launch configuration of its group.
      colocation: Members with the same number share a machine; None for no constraint.
      restart_policy: Its own restart policy, or else that of its group; None for none.
      worker: Its current incarnation; None before the first and between two.
      was_active: True once it has had work of its own.
      is_abandoned: True if it was given up without having ended.
      started_at: Monotonic time of the last start.
      restart_at: Monotonic time of the next start, or None.
      failed_at: Monotonic time of the failure from which it is recovering, or None.
      is_replaced: True if its worker was killed in order to restart it.
    """

    label: str
    index: int
    node: base.Node
    launch_config: python.PythonProcess = python.PythonProcess()
    colocation: int | None = None
    restart_policy: base.RestartPolicy | None = None
    worker: Worker | None = None
    state: str = lp_runtime.STARTING
    was_active: bool = False
    is_abandoned: bool = False
    started_at: float = 0.0
    restart_at: float | None = None
    failed_at: float | None = None
    is_replaced: bool = False

    @property
    def name(self) -> str:
        """ "label/index" of the node, or its own title."""
        return self.node.title or f"{self.label}/{self.index}"

    @property
    def is_gone(self) -> bool:
        """True if the node has ended, or was given up."""
        return self.is_abandoned or self.state == lp_runtime.ENDED

    @property
    def has_done_its_work(self) -> bool:
        """True if it is gone or finished, or only serves others after work of its own."""
        if self.state == lp_runtime.SERVING and not self.is_abandoned:
            return self.was_active
        return self.is_gone or self.state == lp_runtime.FINISHED

    def may_restart_after(self, record: errors.ExceptionRecord) -> bool:
        """Returns whether its policy allows restarts after this failure."""
        policy = self.restart_policy
        died = record.type_name == errors.PROCESS_DIED
        return policy is not None and (died or policy.on_exception)


@dataclasses.dataclass(frozen=True)
class NodeRestart:
    """A restart of a node.

    Attributes:
      node: Name of the node, such as "actor/0".
      reason: Why its last incarnation ended.
    """

    node: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Failure:
    """A failure of a node, and the monotonic time at which the supervisor learned of it."""

    member: Member
    record: errors.ExceptionRecord
    time: float

    def as_error(self) -> errors.NodeFailedError:
        """Returns the error to raise for it."""
        error = errors.NodeFailedError(self.member.label, self.member.index, self.record)
        error.__cause__ = self.record.rebuild()
        return error


def root(failures: Sequence[Failure]) -> Failure:
    """Returns the failure that caused the others.

    A node that loses a connection often reports this before the death of the process at the other
    end is known. So among failures close in time, the first that is not collateral is chosen.
    """
    start = failures[0].time + _ROOT_WINDOW_SECS
    close = [f for f in failures if f.time <= start]
    return next((f for f in close if not f.record.is_collateral), close[0])
