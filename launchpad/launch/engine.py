"""What an engine gets, and what it does."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from launchpad import address_book as lp_address_book
from launchpad import runtime as lp_runtime
from launchpad.launch import child, serialization
from launchpad.launch import member as lp_member
from launchpad.launch import supervisor as lp_supervisor


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch, as an engine sees it.

    Attributes:
      members: The nodes.
      info: What all nodes share.
      book: The addresses.
      cluster_address: The `address` argument of `launch`; only for engines of clusters.
      terminal: Where output goes, the `terminal` argument of `launch`; only for processes.
    """

    members: Sequence[lp_member.Member]
    info: lp_runtime.ProgramInfo
    book: lp_address_book.AddressBook
    cluster_address: str | None
    terminal: str | None = None


class Engine(Protocol):
    """Runs the nodes of one launch. Constructed in `launch`, where it raises what is wrong."""

    def make_worker(
        self, member: lp_member.Member, supervisor: lp_supervisor.Supervisor
    ) -> lp_member.Worker:
        """Makes a new incarnation of a node, not started yet."""

    def prepare(self, member: lp_member.Member) -> None:
        """Makes ready for a node that is added to the running program.

        Raises:
          TypeError: the node does not pickle.
          ValueError: it needs more than there is.
        """

    def close(self) -> None:
        """Gives up what the engine holds; called once, when all nodes are gone."""


def dump_nodes(launch: Launch) -> dict[str, bytes]:
    """Pickles all nodes, by name.

    Raises:
      TypeError: one of them does not pickle.
    """
    return {m.name: serialization.dump_node(m.node, m.name) for m in launch.members}


def make_spec(launch: Launch, member: lp_member.Member, node: bytes) -> child.NodeSpec:
    """Describes `member`, pickled as `node`, for the process that it starts in now."""
    return child.NodeSpec(
        label=member.label,
        index=member.index,
        info=launch.info,
        addresses=launch.book.snapshot(),
        node=node,
        launch_config=member.launch_config,
        argv=list(sys.argv),
        flags=serialization.dump_flags(member.launch_config.args),
    )


def search_path() -> list[str]:
    """Returns the directories from which this process imports, for a new one."""
    return [entry or os.getcwd() for entry in sys.path]
