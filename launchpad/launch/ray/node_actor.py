"""A node's process, as Ray starts it. Runs in Ray's worker, so it is small."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
from collections.abc import Mapping

import ray

from launchpad.launch import child
from launchpad.launch.ray import control


@dataclasses.dataclass(frozen=True)
class Call:
    """How a node finds its launcher, and its launcher's ways.

    Attributes:
      address: Host and port of the launcher's switchboard.
      key: What the node shows there.
      is_local: True if all nodes run on the launcher's machine.
      directory: The launcher's working directory; used where it exists.
      environment: Variables that the node must see in place of those that its process was started
        with; None for a variable that it must not see.
    """

    address: tuple[str, int]
    key: bytes
    is_local: bool
    directory: str
    environment: Mapping[str, str | None]


class NodeActor:
    """Hosts one node: Ray starts it in a process of its own, and runs it in the main thread."""

    def __init__(self, name: str):
        self._name = name

    def __repr__(self) -> str:
        return self._name  # Ray puts it before every line that the node prints.

    def run(self, spec: child.NodeSpec, call: Call) -> int:
        """Runs the node to its end; returns the exit status that a process would have.

        Raises:
          ConnectionError: the launcher can't be reached.
        """
        atexit._clear()  # Ray's handlers would cut the connection by which this call returns.
        for name, value in call.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        with contextlib.suppress(OSError):
            os.chdir(call.directory)
        channel = control.call(call.address, spec.info.token, call.key)
        if not call.is_local:
            info = dataclasses.replace(spec.info, host=ray.util.get_node_ip_address())
            spec = dataclasses.replace(spec, info=info)
        status = child.Child(channel, spec).run()
        child.run_exit_handlers()
        return status
