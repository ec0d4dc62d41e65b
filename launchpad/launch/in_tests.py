"""What upstream's modules `test_multi_threading` and `test_multi_processing` have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from launchpad.launch_type import LaunchType

if TYPE_CHECKING:
    from launchpad.launch.manager import ProgramManager
    from launchpad.program import Program


def launcher(launch_type: LaunchType) -> Callable[..., ProgramManager]:
    """Returns upstream's `launch` for tests.

    Args:
      launch_type: Where the nodes run.
    """

    def launch(
        program: Program,
        test_case: Any,
        local_resources: Mapping[str, Any] | None = None,
        serialize_py_nodes: bool = True,
    ) -> ProgramManager:
        """Starts a program that ends with a test.

        Args:
          program: The program.
          test_case: A unittest.TestCase.
          local_resources: Label -> launch configuration.
          serialize_py_nodes: Whether to check that all nodes pickle.
        """
        from launchpad.launch import launch as lp_launch  # It imports all engines.

        return lp_launch.launch(
            program,
            launch_type,
            local_resources=local_resources,
            test_case=test_case,
            serialize_py_nodes=serialize_py_nodes,
        )

    return launch
