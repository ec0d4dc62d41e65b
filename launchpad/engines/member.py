"""A node of a launched program, as the supervisor and the engines see it."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from launchpad import runtime as lp_runtime
from launchpad.nodes import base, resources
from rl_replicator.processes.restarts import Restarts


class Worker(Protocol):
    """One running incarnation of a node. Methods return immediately; only `start` may raise."""

    def start(self) -> None:
        """Starts the node."""

    def notify_stop(self) -> None:
        """Asks the node to leave its `run()`."""

    def notify_ready(self) -> None:
        """Tells the node that all nodes have been constructed."""

    def release(self) -> None:
        """Tells the node that its server is no longer needed."""

    def kill(self) -> None:
        """Kills the node, as far as that is possible; see `is_killable`."""

    def send_address(self, key: str, address: str) -> None:
        """Sends the node the address ("host:port") at which the owner of `key` serves."""

    def close(self) -> None:
        """Frees the launcher's resources for the node, which has ended."""

    def end_frozen(self, secs: float) -> None:
        """Kills a node that has shown no sign of life for `secs` seconds."""

    @property
    def is_killable(self) -> bool:
        """Whether `kill` ends the node regardless of what its code does."""

    @property
    def silent_secs(self) -> float:
        """Seconds since the last sign of life of the node."""

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped the node's process, as far as this machine can tell."""


@dataclasses.dataclass
class Member:
    """A node of the program and its state in the supervisor.

    Attributes:
      launch_config: The launch configuration of its group.
      colocation: Members with the same number share a machine; None for no constraint.
      restart_policy: Its own restart policy, or else that of its group; None for none.
      worker: Its current incarnation; None before the first and between two.
      was_active: True once it has had work of its own.
      is_abandoned: True if it was given up without having ended.
      restarts: Counts the restarts; None before the first failure.
      started_at: Monotonic time of the last start.
      named_slow_after: Seconds after its start at which its slow start was last logged.
      restart_at: Monotonic time of the next start, or None.
      failed_at: Monotonic time of the failure from which it is recovering, or None.
      is_replaced: True if its worker was killed in order to restart it.
    """

    label: str
    index: int
    node: base.Node
    launch_config: resources.PythonProcess = resources.PythonProcess()
    colocation: int | None = None
    restart_policy: base.RestartPolicy | None = None
    worker: Worker | None = None
    state: str = lp_runtime.STARTING
    was_active: bool = False
    is_abandoned: bool = False
    restarts: Restarts | None = None
    started_at: float = 0.0
    named_slow_after: float = 0.0
    restart_at: float | None = None
    failed_at: float | None = None
    is_replaced: bool = False

    @property
    def name(self) -> str:
        """ "label/index" of the node, or its own title."""
        return self.node.title or f"{self.label}/{self.index}"

    @property
    def team(self) -> str:
        """Name of the nodes that may be restarted together with it."""
        return self.node.team or self.label

    @property
    def is_gone(self) -> bool:
        """True if the node has ended, or was given up."""
        return self.is_abandoned or self.state == lp_runtime.ENDED

    @property
    def has_done_its_work(self) -> bool:
        """True if it is gone or finished, or only serves others after work of its own."""
        if self.state == lp_runtime.SERVING and not self.is_abandoned:
            return self.was_active
        return self.is_gone or self.state == lp_runtime.FINISHED
