"""Callables that stop a program from outside its nodes."""

from __future__ import annotations

import dataclasses
import os
import signal

from launchpad import context
from launchpad import runtime as lp_runtime


@dataclasses.dataclass(frozen=True)
class ProgramStopper:
    """Stops the program when called. Pickles: elsewhere it signals the launcher.

    Attributes:
      launcher_pid: Process that launches the program.
    """

    launcher_pid: int

    def __call__(self, mark_as_completed: bool = False) -> None:
        runtime = lp_runtime.current()
        if runtime is not None:
            runtime.stop(mark_as_completed)
        else:
            os.kill(self.launcher_pid, signal.SIGTERM)


def make_program_stopper(launch_type: context.LaunchType | str) -> ProgramStopper:
    """Returns a callable that stops the program that this process launches.

    Raises:
      NotImplementedError: `launch_type` is not one of this machine.
    """
    if not context.is_local_launch_or_test(launch_type):
        raise NotImplementedError(f"no program stopper for {launch_type}; call lp.stop() in a node")
    return ProgramStopper(os.getpid())
