"""Reports long waits of a node, and ends them when the program stops."""

import logging
import threading
from collections.abc import Callable

_LOG = logging.getLogger("agents")
_SECONDS_BETWEEN_LINES = 10.0


class StoppedError(Exception):
    """Ends a wait because the program stops."""


class WaitLog:
    """Logs a line every ten seconds of a wait."""

    def __init__(self, who: str, reason: Callable[[], str], stop: threading.Event):
        """Stores the texts.

        Args:
          who: the node's name in the log.
          reason: returns what it waits for and why; called when a line is due.
          stop: the node's stop event. Only the node's own thread can obtain it; any thread may wait
            for it.
        """
        self._who = who
        self._reason = reason
        self._stop = stop
        self._next_line = _SECONDS_BETWEEN_LINES

    def tick(self, waited: float) -> None:
        """Logs a line if one is due; to be called repeatedly during a wait.

        Args:
          waited: seconds since the wait began.

        Raises:
          StoppedError: if the program is stopping.
        """
        if self._stop.is_set():
            raise StoppedError
        if waited < self._next_line - _SECONDS_BETWEEN_LINES:
            self._next_line = _SECONDS_BETWEEN_LINES  # Another wait has begun.
        if waited >= self._next_line:
            self._next_line += _SECONDS_BETWEEN_LINES
            _LOG.warning("%s has waited %.0f s for %s", self._who, waited, self._reason())
