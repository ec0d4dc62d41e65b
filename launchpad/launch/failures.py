"""Which of several failures the others followed from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from launchpad import errors
from launchpad.launch import member as lp_member

# Failures this close to the first, in seconds, compete for being the root of all.
_ROOT_WINDOW_SECS = 1.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """A failure of a node, and the monotonic time at which the supervisor heard of it."""

    member: lp_member.Member
    record: errors.ExceptionRecord
    time: float


def root_failure(failures: Sequence[Failure]) -> errors.NodeFailedError | None:
    """Picks the failure that the others followed from; None if there is none.

    A peer that lost its connection often reports before the death of the process at the other end
    is known, so among failures close in time one with a cause of its own wins.
    """
    if not failures:
        return None
    start = failures[0].time + _ROOT_WINDOW_SECS
    close = [f for f in failures if f.time <= start]
    root = next((f for f in close if not f.record.is_collateral), close[0])
    error = errors.NodeFailedError(root.member.label, root.member.index, root.record)
    error.__cause__ = root.record.rebuild()
    return error
