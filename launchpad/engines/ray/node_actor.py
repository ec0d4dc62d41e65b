"""The Ray actor that runs a node."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence

from launchpad.engines import child
from launchpad.engines.ray import control


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """The surroundings of a node's code in its process, set before the code is loaded.

    Attributes:
      is_local: True if all nodes run on the launcher's machine, so that its loopback interface is
        enough.
      directory: The working directory; if it does not exist, Ray's is kept.
      search_path: Directories from which Python imports first.
      environment: Environment variables; None for one that must not be set.
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
        return self._name  # Ray prefixes every line that the node prints with it.

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
          key: Identifies this node to the switchboard.
          surroundings: Set in this process before the node is loaded.

        Returns:
          The exit status that a process would have.

        Raises:
          ConnectionError: the launcher can't be reached.
        """
        atexit._clear()  # Ray's handlers would close the connection on which this call returns.
        surroundings.enter()
        channel = control.call(launcher, spec.info.secret, key)
        if not surroundings.is_local:
            import ray  # The launcher's process imports this module before Ray.

            info = dataclasses.replace(spec.info, host=ray.util.get_node_ip_address())
            spec = dataclasses.replace(spec, info=info)
        status = child.Child(channel, spec).run()
        child.run_exit_handlers()
        return status
