"""Reports long waits of a node, and ends them when the program stops."""

import logging
from collections.abc import Callable

import launchpad as lp

_LOG = logging.getLogger("agents")
_SECONDS_BETWEEN_LINES = 10.0


class StoppedError(Exception):
    """Ends a wait because the program stops."""


class WaitLog:
    """Logs a line every ten seconds of a wait."""

    def __init__(self, who: str, reason: Callable[[], str]):
        """Stores the texts.

        Args:
          who: the node, as users know it.
          reason: returns what it waits for and why; called when a line is due.
        """
        self._who = who
        self._reason = reason
        self._next_line = _SECONDS_BETWEEN_LINES

    def tick(self, waited: float) -> None:
        """Logs a line if one is due; to be called repeatedly during a wait.

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
