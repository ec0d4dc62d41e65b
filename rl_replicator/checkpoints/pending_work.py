"""Work that may still change variables after the call that began it has returned.

Steps of parameter servers run ahead of their caller. Whoever needs variables that stand still, such
as a checkpoint, settles first, and does not have to know what kind of replicator there is.
"""

import weakref
from typing import Protocol


class Unsettled(Protocol):
    """Something that begins work before it is asked for."""

    def synchronize(self) -> None:
        """Returns when all work that was begun has ended; begins none."""


_OPEN: "weakref.WeakSet[Unsettled]" = weakref.WeakSet()


def register(owner: Unsettled) -> None:
    """Has `settle` call `owner.synchronize()` for as long as `owner` lives."""
    _OPEN.add(owner)


def settle() -> None:
    """Returns when nothing changes variables in the background; raises what a step would."""
    for owner in tuple(_OPEN):
        owner.synchronize()
