"""Stops the running program."""

from __future__ import annotations

from launchpad import runtime as lp_runtime


def stop(mark_as_completed: bool = False) -> None:
    """Stops the whole program, from any of its nodes; returns immediately.

    Raises:
      RuntimeError: outside a running program.
    """
    lp_runtime.require_current().stop(mark_as_completed)
