"""Launch types, and a node's information about its launch."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any


class LaunchType(enum.Enum):
    """How a program is run: `lp.launch(program, launch_type=...)` or `--lp_launch_type`."""

    LOCAL_MULTI_THREADING = "local_mt"  # Every node is a thread of this process.
    LOCAL_MULTI_PROCESSING = "local_mp"  # Every node is a process of this machine.
    TEST_MULTI_THREADING = "test_mt"  # Threads; signals are not handled, exit stops the program.
    TEST_MULTI_PROCESSING = "test_mp"  # Processes; likewise.
    LOCAL_DOCKER = "local_docker"  # Upstream's name; refused by `launch`.
    VERTEX_AI = "vertex_ai"  # Upstream's name; refused by `launch`.
    RAY = "ray"  # Every node is placed by Ray.


_LOCAL = (LaunchType.LOCAL_MULTI_THREADING, LaunchType.LOCAL_MULTI_PROCESSING)
_TEST = (LaunchType.TEST_MULTI_THREADING, LaunchType.TEST_MULTI_PROCESSING)


def is_local_launch(launch_type: LaunchType | str) -> bool:
    """True for threads and processes of this machine, excluding the test types."""
    return LaunchType(launch_type) in _LOCAL


def is_local_launch_or_test(launch_type: LaunchType | str) -> bool:
    """True for threads and processes of this machine, including the test types."""
    return LaunchType(launch_type) in _LOCAL + _TEST


class LaunchContext:
    """Information for a node's code about its launch; created when the node starts.

    Attributes:
      launch_type: How the program was launched.
      launch_config: The group's entry in `local_resources`, or else an `lp.PythonProcess()`; None
        in the launching process.
      program_stopper: Callable that stops the program.
    """

    def __init__(
        self,
        launch_type: LaunchType,
        launch_config: Any,
        program_stopper: Callable[..., None],
    ):
        self.launch_type = launch_type
        self.launch_config = launch_config
        self.program_stopper = program_stopper
