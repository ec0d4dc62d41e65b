"""Callables that stop a program from outside its nodes."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket

from launchpad import context
from launchpad import runtime as lp_runtime


@dataclasses.dataclass(frozen=True)
class ProgramStopper:
    """Stops the program when called, in a node or in any process of the launcher's machine.

    In a thread of the launcher that may belong to several programs, it raises RuntimeError.

    Attributes:
      launcher_pid: Process that launches the program.
      launcher_host: Name of its machine.
    """

    launcher_pid: int
    launcher_host: str

    def __call__(self, mark_as_completed: bool = False) -> None:
        runtime = lp_runtime.unambiguous()
        if runtime is not None:
            runtime.stop(mark_as_completed)
        elif socket.gethostname() != self.launcher_host:
            raise RuntimeError(
                f"the program was launched on {self.launcher_host}, not here, and this process is "
                "none of its nodes: stop it from a node, or there"
            )
        else:
            os.kill(self.launcher_pid, signal.SIGTERM)


def make_program_stopper(launch_type: context.LaunchType | str) -> ProgramStopper:
    """Returns a callable that stops the program that this process launches.

    Raises:
      NotImplementedError: `launch_type` is one that `launch` refuses.
    """
    is_ray = context.LaunchType(launch_type) == context.LaunchType.RAY
    if not is_ray and not context.is_local_launch_or_test(launch_type):
        raise NotImplementedError(f"no program stopper for {launch_type}; call lp.stop() in a node")
    return ProgramStopper(os.getpid(), socket.gethostname())
