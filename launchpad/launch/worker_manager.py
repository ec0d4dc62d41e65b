"""Functions by which a node's code takes part in the end of the program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from launchpad import runtime as lp_runtime


def stop_event() -> threading.Event:
    """Returns the event that is set when the program stops.

    A node that asks for it, waits for it or registers a stop handler is expected to leave `run()`
    by itself. Other nodes get SystemExit in their main thread when the program stops.

    Raises:
      RuntimeError: outside a running program.
    """
    runtime = lp_runtime.require_current()
    runtime.mark_stop_aware()
    return runtime.stop_event


def wait_for_stop(timeout_secs: float | None = None) -> bool:
    """Blocks until the program stops.

    Args:
      timeout_secs: Seconds to wait; None for as long as it takes.

    Returns:
      True if the program stops, False if the time is over.

    Raises:
      RuntimeError: outside a running program.
    """
    return stop_event().wait(timeout_secs)


def register_stop_handler(handler: Callable[[], Any]) -> None:
    """Calls `handler()` in a thread of its own when the program stops.

    Raises:
      RuntimeError: outside a running program.
    """
    lp_runtime.require_current().add_stop_handler(handler)


def unregister_stop_handler(handler: Callable[[], Any]) -> None:
    """Undoes `register_stop_handler(handler)`; does nothing if it is not registered."""
    lp_runtime.require_current().remove_stop_handler(handler)
