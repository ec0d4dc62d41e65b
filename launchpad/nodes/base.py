"""Nodes and handles."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from launchpad import address as lp_address
from launchpad import runtime as lp_runtime
from launchpad.nodes import dereference
from launchpad.runtime import LaunchContext, LaunchType

# The shortest silence after which a process can be considered frozen, in seconds.
_FROZEN_SECS = 5 * lp_runtime.HEARTBEAT_SECS

ClientType = TypeVar("ClientType")
HandleType = TypeVar("HandleType", bound="Handle")


class Handle(dereference.Dereferenceable[ClientType], Generic[ClientType]):
    """Stands for a node in the arguments of other nodes; they get its client instead."""

    def connect(self, node: Node[Any], label: str) -> None:
        """Called by `launch` for each node that gets this handle, and its group; does nothing."""

    def transform(self, executables: Sequence[Any]) -> Sequence[Any]:
        """Returns the executables unchanged."""
        return executables


@dataclasses.dataclass(frozen=True)
class RestartPolicy:
    """When and how often a failed node is restarted.

    A restart comes after `initial_backoff_secs`. This pause doubles, up to `max_backoff_secs`, with
    each further one of a node that has run for less than `max_backoff_secs`. The node is
    constructed again, and restores its state from its checkpoint.

    Attributes:
      max_restarts: Restarts in a row; the failure after that ends the program.
      on_exception: False to restart only nodes whose process died.
      together: True for a node without which the others of its group cannot continue: when it is
        restarted, all of them are, at new addresses, once all have ended, even those with another
        policy or none. For processes.
      initial_backoff_secs: Pause before the first restart.
      max_backoff_secs: Longest pause.
      reset_after_secs: After a node has run for this long, its restarts are counted from 0 again.
      frozen_after_secs: A process that does not respond for this long is killed, and counts as
        dead; at least 10, or None to wait forever. A process stops responding only if it holds the
        GIL, or if its machine is lost, but not while it waits or computes. A process of this
        machine that a signal has stopped is killed after five seconds.
    """

    max_restarts: int = 10
    on_exception: bool = True
    together: bool = False
    initial_backoff_secs: float = 0.5
    max_backoff_secs: float = 30.0
    reset_after_secs: float = 300.0
    frozen_after_secs: float | None = 60.0

    def __post_init__(self) -> None:
        numbers = (
            self.max_restarts,
            self.initial_backoff_secs,
            self.max_backoff_secs,
            self.reset_after_secs,
        )
        if not all(number >= 0 for number in numbers):
            raise ValueError(f"numbers of a RestartPolicy can't be negative: {self}")
        if self.frozen_after_secs is not None and not self.frozen_after_secs >= _FROZEN_SECS:
            raise ValueError(
                f"frozen_after_secs={self.frozen_after_secs:g}: expected at least {_FROZEN_SECS:g} "
                f"(a process shows signs of life every {lp_runtime.HEARTBEAT_SECS:g} s, and later "
                "on a busy machine), or None to wait forever"
            )


class Node(abc.ABC, Generic[HandleType]):
    """One role of the program: a function, an object, or a server.

    Attributes:
      restart_policy: What to do when the node fails; None ends the program.
      stops_last: True for stores to which other nodes write until they end: such stores are
        released only after all other nodes have ended.
      imports: Modules that the node imports, for the process from which nodes are forked.
      title: Its name in messages; None for "label/index".
    """

    stops_last = False
    imports: Sequence[str] = ()
    title: str | None = None

    def __init__(self) -> None:
        self._addresses: list[lp_address.Address] = []
        self.restart_policy: RestartPolicy | None = None
        self._input_handles: list[Handle[Any]] = []
        self._created_handles: list[Handle[Any]] = []

    @abc.abstractmethod
    def create_handle(self) -> HandleType:
        """Returns a new handle to this node."""

    @staticmethod
    def to_executables(
        nodes: Sequence[Any], label: str, launch_context: Any
    ) -> Sequence[Callable[[], Any]]:
        """Returns the nodes as callables without arguments, for every launch type."""
        del label, launch_context
        return [node.execute for node in nodes]

    def execute(self) -> Any:
        """Runs the node in the calling thread until it ends; called by engines."""
        runtime = lp_runtime.require_current()
        for execute in self.to_executables([self], runtime.label, runtime.launch_context):
            execute()

    @property
    def launch_context(self) -> LaunchContext:
        """The launch that the calling code is part of.

        Raises:
          RuntimeError: Outside a running program.
        """
        return lp_runtime.require_current().launch_context

    def bind_addresses(self, **kwargs: Any) -> None:
        """Assigns a free local port to each address of the node, to run it without a launch.

        While a program with the node runs, its addresses are those that the program has chosen.

        Args:
          **kwargs: Accepted for compatibility with upstream.
        """
        del kwargs
        for address in self.addresses:
            address.bind(lp_address.SimpleLocalAddressBuilder())

    @classmethod
    def default_launch_config(cls, launch_type: LaunchType) -> Any:
        """Returns None: no launch type needs a configuration."""
        del launch_type

    @property
    def addresses(self) -> list[lp_address.Address]:
        """Addresses that this node serves."""
        return self._addresses

    @property
    def input_handles(self) -> list[Handle[Any]]:
        """Handles of other nodes among this node's arguments."""
        return list(self._input_handles)

    def allocate_address(self, address: lp_address.Address) -> None:
        """Makes this node the owner of `address`."""
        address.assign(self)

    def _track_handle(self, handle: Any) -> Any:
        self._created_handles.append(handle)
        return handle


def extract_handles(tree: Any) -> list[Handle[Any]]:
    """Returns the handles in `tree`, including those inside `Deferred` arguments."""
    found: list[Handle[Any]] = []

    def visit(leaf: Any) -> Any:
        if isinstance(leaf, dereference.Deferred):
            dereference.map_tree(visit, leaf.arguments)
        elif isinstance(leaf, Handle):
            found.append(leaf)
        return leaf

    dereference.map_tree(visit, tree)
    return found
