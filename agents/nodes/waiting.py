"""Waiting aloud: a node that is held up says what for, and gives up when the program stops."""

import logging
from collections.abc import Callable

import launchpad as lp

_LOG = logging.getLogger("agents")
_SECONDS_BETWEEN_LINES = 10.0


class StoppedError(Exception):
    """Raised out of a wait when the program stops."""


class Waiting:
    """Counts the seconds of a wait and speaks every ten of them."""

    def __init__(self, who: str, reason: Callable[[], str]):
        """Args:
        who: the node, as users know it.
        reason: what it waits for and why, asked when a line is due.
        """
        self._who = who
        self._reason = reason
        self._next_line = _SECONDS_BETWEEN_LINES

    def tick(self, waited: float) -> None:
        """To be called now and then during a wait.

        Args:
          waited: seconds since the wait began.

        Raises:
          StoppedError: if the program is stopping.
        """
        if lp.stop_event().is_set():
            raise StoppedError
        if waited < self._next_line - _SECONDS_BETWEEN_LINES:
            self._next_line = _SECONDS_BETWEEN_LINES  # Another wait has begun.
        if waited >= self._next_line:
            self._next_line += _SECONDS_BETWEEN_LINES
            _LOG.warning("%s has waited %.0f s for %s", self._who, waited, self._reason())
