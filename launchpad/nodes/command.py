"""A node that runs a command."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from launchpad.nodes import base, python


class CommandNode(python.PyNode[base.Handle[Any], None]):
    """Runs a command in a process of its own, on this machine; it ends well with status 0.

    A stop of the program sends it SIGTERM. Its standard error goes where its standard output does.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        title: str,
        collateral_status: int | None = None,
        final_statuses: Collection[int] = (),
    ):
        """Describes the node.

        Args:
          command: The command and its arguments.
          environment: Environment variables to add to those of the launcher.
          title: Its name, in messages and before each line of its output.
          collateral_status: Exit status of a command that has lost another process.
          final_statuses: Exit statuses after which a restart would end in the same way.
        """
        super().__init__(self.execute)
        self.command = list(command)
        self.environment = dict(environment)
        self.title = title
        self.collateral_status = collateral_status
        self.final_statuses = frozenset(final_statuses)

    def execute(self) -> None:
        """Never called: the engine of processes runs the command itself."""
        raise NotImplementedError("a CommandNode is run by the launch type 'local_mp' only")


class ServingCommandNode(CommandNode):
    """A command that serves others until the program stops, and ends after them."""

    stops_last = True
