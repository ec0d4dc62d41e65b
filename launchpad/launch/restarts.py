"""Decides whether and when a failed node is restarted."""

from __future__ import annotations

import dataclasses
import logging

from launchpad import errors
from launchpad.launch import member as lp_member

logger = logging.getLogger("launchpad")


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
