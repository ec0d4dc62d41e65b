"""Functions with which code takes part in the start and stop of its program."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from launchpad import runtime as lp_runtime
from launchpad.runtime import LaunchContext, LaunchType, is_local_launch_or_test


def stop(mark_as_completed: bool = False) -> None:
    """Stops the whole program, from any of its nodes; returns immediately.

    Raises:
      RuntimeError: outside a running program.
    """
    lp_runtime.require_current().stop(mark_as_completed)


def get_context() -> LaunchContext:
    """Returns the launch context of the calling node.

    Raises:
      RuntimeError: outside a running program.
    """
    return lp_runtime.require_current().launch_context


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
      True if the program stops, False if the time has passed.

    Raises:
      RuntimeError: outside a running program.
    """
    return stop_event().wait(timeout_secs)


def make_node_killer() -> Callable[[Exception, float], None]:
    """Returns a function that ends the calling node from any thread, even if its code is stuck.

    The function takes an error that describes what is stuck, and for how many seconds it has been
    stuck. It ends the process of the node, and the restart policy applies; a thread cannot be
    killed, so the program ends with the error. While the program stops, and outside a program, the
    function does nothing.
    """
    runtime = lp_runtime.current()
    return runtime.give_up if runtime is not None else lambda error, stuck_secs: None


def register_stop_handler(handler: Callable[[], Any]) -> None:
    """Calls `handler()` in a thread of its own when the program stops.

    Outside a program it does nothing, so that loops that watch for a stop also run in plain
    scripts.
    """
    runtime = lp_runtime.current()
    if runtime is not None:
        runtime.add_stop_handler(handler)


def unregister_stop_handler(handler: Callable[[], Any]) -> None:
    """Undoes `register_stop_handler(handler)`; does nothing if it is not registered."""
    runtime = lp_runtime.current()
    if runtime is not None:
        runtime.remove_stop_handler(handler)


class NodeWorkerManager:
    """The program, as a node's code sees it; see `get_worker_manager`."""

    def wait_for_stop(self) -> None:
        """Blocks until the program stops."""
        wait_for_stop()

    def stop_and_wait(self) -> None:
        """Requests that the program stops, and blocks until it does."""
        lp_runtime.require_current().stop()
        wait_for_stop()


def get_worker_manager() -> NodeWorkerManager:
    """Returns the program of the calling node, or the one that the launching process runs.

    Raises:
      RuntimeError: outside a running program.
    """
    lp_runtime.require_current()
    return NodeWorkerManager()


@dataclasses.dataclass(frozen=True)
class ProgramStopper:
    """Stops the program when called, in a node or in any process of the launcher's machine.

    Attributes:
      launcher_pid: Process that launches the program.
      launcher_host: Name of its machine.
    """

    launcher_pid: int
    launcher_host: str

    def __call__(self, mark_as_completed: bool = False) -> None:
        runtime = lp_runtime.current()
        if runtime is not None:
            runtime.stop(mark_as_completed)
        elif socket.gethostname() != self.launcher_host:
            raise RuntimeError(
                f"the program was launched on {self.launcher_host}, not here, and this process is "
                "none of its nodes: stop it from a node, or there"
            )
        else:
            os.kill(self.launcher_pid, signal.SIGTERM)


def make_program_stopper(launch_type: LaunchType | str) -> ProgramStopper:
    """Returns a callable that stops the program that this process launches.

    Raises:
      NotImplementedError: `launch_type` is one that `launch` refuses.
    """
    is_ray = LaunchType(launch_type) == LaunchType.RAY
    if not is_ray and not is_local_launch_or_test(launch_type):
        raise NotImplementedError(f"no program stopper for {launch_type}; call lp.stop() in a node")
    return ProgramStopper(os.getpid(), socket.gethostname())
