"""Finds the root cause among several failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from launchpad import errors
from launchpad.launch import member as lp_member

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
