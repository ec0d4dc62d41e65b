"""Nodes that share a machine, each in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from launchpad.nodes import base
from launchpad.nodes.python import node as python


class MultiProcessingColocation(python.PyNode[Any, None]):
    """Several nodes that are placed on one machine.

    `launch` replaces the colocation by its nodes, as members of the same group: on this machine
    they are colocated anyway. If the program runs as threads, they are threads like all nodes.
    """

    def __init__(self, nodes: Sequence[python.PyNode], num_retries_on_failure: int = 0):
        """Describes the nodes.

        Args:
          nodes: What to run.
          num_retries_on_failure: How often each node is restarted when it fails.
        """
        super().__init__(self.execute)
        self._nodes: list[python.PyNode] = []
        self._num_retries = num_retries_on_failure
        for node in nodes:
            self.add_node(node)

    @property
    def nodes(self) -> list[python.PyNode]:
        """The nodes that share a machine."""
        return self._nodes

    def add_node(self, node: python.PyNode) -> Any:
        """Adds a node and returns its handle.

        Raises:
          ValueError: it is not a PyNode.
        """
        if not isinstance(node, python.PyNode):
            raise ValueError("MultiProcessingColocation only works with PyNodes.")
        if self._num_retries and node.restart_policy is None:
            node.restart_policy = base.RestartPolicy(max_restarts=self._num_retries)
        self._nodes.append(node)
        return node.create_handle()

    def execute(self) -> None:
        """Never called: engines launch the nodes themselves."""
        raise NotImplementedError("a MultiProcessingColocation is run by lp.launch() only")
