"""A node's process, as Ray starts it."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence

from launchpad.launch import child
from launchpad.launch.ray import control


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What a node's code finds in its process, set before the code is loaded.

    Attributes:
      is_local: True if all nodes run on the launcher's machine, whose loopback interface then
        serves.
      directory: The working directory; Ray's where it does not exist.
      search_path: Where Python imports from first.
      environment: Variables; None for one that must not be set.
    """

    is_local: bool
    directory: str
    search_path: Sequence[str]
    environment: Mapping[str, str | None]

    def enter(self) -> None:
        for name, value in self.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        child.import_from(self.search_path)
        with contextlib.suppress(OSError):
            os.chdir(self.directory)


class NodeActor:
    """Hosts one node: Ray starts it in a process of its own, and runs it in the main thread."""

    def __init__(self, name: str):
        self._name = name

    def __repr__(self) -> str:
        return self._name  # Ray puts it before every line that the node prints.

    def run(
        self,
        spec: child.NodeSpec,
        launcher: tuple[str, int],
        key: bytes,
        surroundings: Surroundings,
    ) -> int:
        """Runs the node to its end.

        Args:
          spec: The node.
          launcher: Host and port of the launcher's switchboard.
          key: What this node shows there.
          surroundings: What it finds here.

        Returns:
          The exit status that a process would have.

        Raises:
          ConnectionError: the launcher can't be reached.
        """
        atexit._clear()  # Ray's handlers would cut the connection by which this call returns.
        surroundings.enter()
        channel = control.call(launcher, spec.info.secret, key)
        if not surroundings.is_local:
            import ray  # The launcher's process imports this module before Ray.

            info = dataclasses.replace(spec.info, host=ray.util.get_node_ip_address())
            spec = dataclasses.replace(spec, info=info)
        status = child.Child(channel, spec).run()
        child.run_exit_handlers()
        return status
