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


def is_root_known(failures: Sequence[Failure], now: float) -> bool:
    """Whether no failure that is still to come can be the one that the others followed from."""
    return bool(failures) and now > failures[0].time + _ROOT_WINDOW_SECS


def root(failures: Sequence[Failure]) -> Failure:
    """Picks the failure that the others followed from.

    A peer that lost its connection often reports before the death of the process at the other end
    is known, so among failures close in time one with a cause of its own wins.
    """
    start = failures[0].time + _ROOT_WINDOW_SECS
    close = [f for f in failures if f.time <= start]
    return next((f for f in close if not f.record.is_collateral), close[0])


def root_failure(failures: Sequence[Failure]) -> errors.NodeFailedError | None:
    """Returns the failure that the others followed from as an error; None if there is none."""
    if not failures:
        return None
    found = root(failures)
    error = errors.NodeFailedError(found.member.label, found.member.index, found.record)
    error.__cause__ = found.record.rebuild()
    return error
