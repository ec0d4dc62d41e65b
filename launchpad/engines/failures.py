"""Finds the root cause among several failures; decides whether a failed node is restarted."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from launchpad import errors
from launchpad.engines import member as lp_member

logger = logging.getLogger("launchpad")

# Failures within this many seconds of the first one are candidates for the root cause.
_ROOT_WINDOW_SECS = 1.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """A failure of a node, and the monotonic time at which the supervisor learned of it."""

    member: lp_member.Member
    record: errors.ExceptionRecord
    time: float


def is_root_known(failures: Sequence[Failure], now: float) -> bool:
    """Whether the root cause is certain, because a later failure can't be it any more."""
    return bool(failures) and now > failures[0].time + _ROOT_WINDOW_SECS


def root(failures: Sequence[Failure]) -> Failure:
    """Returns the failure that caused the others.

    A node that loses a connection often reports this before the death of the process at the other
    end is known. So among failures close in time, the first that is not collateral is chosen.
    """
    start = failures[0].time + _ROOT_WINDOW_SECS
    close = [f for f in failures if f.time <= start]
    return next((f for f in close if not f.record.is_collateral), close[0])


def root_failure(failures: Sequence[Failure]) -> errors.NodeFailedError | None:
    """Returns the failure that caused the others as an error; None if there is none."""
    if not failures:
        return None
    found = root(failures)
    error = errors.NodeFailedError(found.member.label, found.member.index, found.record)
    error.__cause__ = found.record.rebuild()
    return error


@dataclasses.dataclass(frozen=True)
class NodeRestart:
    """A restart of a node.

    Attributes:
      node: Name of the node, such as "actor/0".
      reason: Why its last incarnation ended.
    """

    node: str
    reason: str


def are_allowed(member: lp_member.Member, record: errors.ExceptionRecord) -> bool:
    """Returns whether the policy of a node allows restarts after this failure."""
    policy = member.restart_policy
    if policy is None:
        return False
    return record.type_name == errors.PROCESS_DIED or policy.on_exception


def count_restart(
    member: lp_member.Member, record: errors.ExceptionRecord | None, now: float
) -> float | None:
    """Counts and logs a restart of a failed node.

    Args:
      member: The node.
      record: Why it ended; None for a normal end.
      now: Monotonic time.

    Returns:
      The seconds until its restart, or None if its policy allows none.
    """
    policy = member.restart_policy
    if policy is None or record is None or not are_allowed(member, record):
        return None
    if member.restarts is None:
        member.restarts = policy.count()
    # Time spent stuck does not count: a node that gets stuck again and again makes no progress.
    pause = member.restarts.next_pause(now - member.started_at - record.stuck_secs)
    if pause is not None:
        logger.warning(
            "%s failed: %s: %s; %s in %.3g s%s",
            member.name,
            record.type_name,
            record.message,
            member.restarts.progress(),
            pause,
            record.lines_below,
        )
    return pause
