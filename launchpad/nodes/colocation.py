"""Nodes that share a process, or a machine."""

from __future__ import annotations

import functools
import math
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from launchpad import address as lp_address
from launchpad import runtime as lp_runtime
from launchpad.nodes import base, node_thread, python

# Nodes that must end because one of them has ended have this long, in seconds. While the program
# stops, the supervisor has a deadline for all of them.
_PARTS_SECS = 10.0
_POLL_SECS = 0.2


class _Colocation(python.RunNode[Any]):
    """Several nodes that share something."""

    def __init__(self, nodes: Sequence[python.PyNode]):
        super().__init__()
        self._nodes: list[python.PyNode] = []
        for node in nodes:
            self.add_node(node)

    @property
    def nodes(self) -> list[python.PyNode]:
        """The nodes in the colocation."""
        return self._nodes

    def add_node(self, node: python.PyNode) -> Any:
        """Adds a node and returns its handle.

        Raises:
          ValueError: it is not a PyNode.
        """
        if not isinstance(node, python.PyNode):
            raise ValueError(f"{type(self).__name__} only works with PyNodes.")
        self._nodes.append(node)
        return node.create_handle()


class MultiProcessingColocation(_Colocation):
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
        self._num_retries = num_retries_on_failure
        super().__init__(nodes)

    def add_node(self, node: python.PyNode) -> Any:
        """Adds a node and returns its handle.

        Raises:
          ValueError: it is not a PyNode.
        """
        handle = super().add_node(node)
        if self._num_retries and node.restart_policy is None:
            node.restart_policy = base.RestartPolicy(max_restarts=self._num_retries)
        return handle


class MultiThreadingColocation(_Colocation):
    """Runs nodes as threads of one process, whatever the launch type.

    Add the colocation to the program, not the nodes inside it; their handles come from
    `add_node()` here or from their own `create_handle()`.
    """

    def __init__(self, nodes: Sequence[python.PyNode], return_on_first_completed: bool = False):
        """Describes the node.

        Args:
          nodes: What to run.
          return_on_first_completed: True to end all of them when the first one ends.
        """
        self._return_on_first_completed = return_on_first_completed
        super().__init__(nodes)

    @property
    def addresses(self) -> list[lp_address.Address]:
        """Addresses that the nodes serve; each still belongs to its own node."""
        return [*self._addresses, *(a for node in self._nodes for a in node.addresses)]

    @property
    def input_handles(self) -> list[base.Handle[Any]]:
        """Handles among the arguments of the nodes, which `configure()` may replace."""
        return [handle for node in self._nodes for handle in node.input_handles]

    def add_node(self, node: python.PyNode) -> Any:
        """Adds a node and returns its handle.

        Raises:
          ValueError: it is not a PyNode, is a MultiProcessingColocation, or has a restart policy.
        """
        if isinstance(node, MultiProcessingColocation):
            raise ValueError(
                "expected a node that runs as a thread, got a MultiProcessingColocation; put the "
                "MultiThreadingColocation inside it, or add its nodes one by one"
            )
        if isinstance(node, python.PyNode) and node.restart_policy is not None:
            raise ValueError(
                "expected a node without a restart policy, because the nodes of a "
                "MultiThreadingColocation are restarted together; set it on the colocation"
            )
        handle = super().add_node(node)
        self.stops_last = self.stops_last or node.stops_last
        self.imports = (*self.imports, *node.imports)
        return handle

    def run(self) -> None:
        """Runs all nodes, and returns when they have ended.

        When one node ends all others, those that have not ended after ten seconds are left running:
        their threads cannot be killed.

        Raises:
          Exception: what the first failed node raised, once the others have ended.
        """
        if not self._nodes:
            raise ValueError("MultiThreadingColocation requires at least one node.")
        runtime = lp_runtime.require_current()
        states = _States(runtime, len(self._nodes))
        ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        parts = [_Part(node, i, runtime, states, ended) for i, node in enumerate(self._nodes)]
        failure = None
        deadline = math.inf
        left = set(parts)
        while left and (runtime.stop_event.is_set() or time.monotonic() < deadline):
            try:
                part, error = ended.get(timeout=_POLL_SECS)
            except queue.Empty:
                continue
            left.discard(part)  # A thread may report twice: see `NodeThread.run`.
            if failure is None and error is not None:
                failure = error
                runtime.tell_failure(error)
            if deadline == math.inf and (failure is not None or self._return_on_first_completed):
                deadline = time.monotonic() + _PARTS_SECS
                for part in parts:
                    part.end()
        if left:
            names = ", ".join(part.thread.name for part in parts if part.thread.is_alive())
            lp_runtime.logger.warning("left behind after %g s: %s", _PARTS_SECS, names)
        if failure is not None:
            raise failure


class _States:
    """Reports one state for several nodes to the supervisor.

    It is RUNNING as soon as one of them has work of its own, and as long as one has; otherwise, it
    is the least advanced of theirs.
    """

    def __init__(self, runtime: lp_runtime.NodeRuntime, num_nodes: int):
        self._runtime = runtime
        self._states = [lp_runtime.STARTING] * num_nodes
        self._told = lp_runtime.STARTING
        self._lock = threading.Lock()

    def set(self, index: int, state: str) -> None:
        order, running = lp_runtime.STATES.index, lp_runtime.RUNNING
        with self._lock:
            self._states[index] = state
            common = running if running in self._states else min(self._states, key=order)
            if order(common) > order(self._told):
                self._told = common
                self._runtime.set_state(common)


class _Part:
    """One of the nodes, in a thread with a runtime of its own."""

    def __init__(
        self,
        node: python.PyNode,
        index: int,
        outer: lp_runtime.NodeRuntime,
        states: _States,
        ended: queue.SimpleQueue[_Ended],
    ):
        self._set_state = functools.partial(states.set, index)
        self._ended = ended
        self._runtime = outer.make_part(self._set_state)
        name = f"{outer.name} part {index}"
        self.thread = node_thread.NodeThread(name, node, self._runtime, self._on_end)
        outer.add_part(self._runtime)
        self.thread.start()

    def end(self) -> None:
        """Stops this node alone."""
        self._runtime.begin_stop()
        self._runtime.release()

    def _on_end(self, error: BaseException | None) -> None:
        if error is None:
            # A failed part is not idle: its colocation is about to fail.
            self._set_state(lp_runtime.FINISHED)
        self._ended.put((self, error))


_Ended = tuple[_Part, BaseException | None]
