"""Information for a node about its launch (upstream's module of the same name)."""

from __future__ import annotations

from launchpad import runtime
from launchpad.launch_type import (
    LaunchContext,
    LaunchType,
    is_local_launch,
    is_local_launch_or_test,
)

__all__ = [
    "LaunchContext",
    "LaunchType",
    "get_context",
    "is_local_launch",
    "is_local_launch_or_test",
]


def get_context() -> LaunchContext:
    """Returns the launch context of the calling node.

    Raises:
      RuntimeError: outside a running program.
    """
    return runtime.require_current().launch_context
