"""A program: nodes in labelled groups."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from launchpad.nodes import base


class Program:
    """A distributed program: nodes in labelled groups, connected by handles.

    For example, four actors that write to one replay:

        program = lp.Program("example")
        with program.group("replay"):
            replay = program.add_node(lp.ReverbNode(make_tables))
        with program.group("actor"):
            for _ in range(4):
                program.add_node(lp.CourierNode(Actor, replay))
        lp.launch(program).wait()
    """

    def __init__(self, name: str):
        self._name = name
        self._groups: dict[str, list[base.Node]] = {}
        self._current_group: str | None = None

    @property
    def name(self) -> str:
        """Name of the program, for messages."""
        return self._name

    @property
    def groups(self) -> dict[str, list[base.Node]]:
        """Nodes by label, in the order they were added."""
        return self._groups

    @property
    def current_group(self) -> str | None:
        """Label of the open `group()` block; None outside of one."""
        return self._current_group

    @contextlib.contextmanager
    def group(self, label: str) -> Iterator[None]:
        """Puts the nodes added in this block into group `label`.

        Raises:
          ValueError: the label is empty, or another group is open.
        """
        if not label:
            raise ValueError("Label should not be empty.")
        if self._current_group:
            raise ValueError("group() cannot be nested.")
        self._current_group = label
        try:
            yield
        finally:
            self._current_group = None

    def add_node(self, node: base.Node, label: str | None = None) -> Any:
        """Adds `node` and returns a handle to it, to be passed to other nodes.

        Args:
          node: The node. One that serves an address may be added only once; others run once for
            each time that they are added.
          label: Its group; needed outside a `group()` block.

        Raises:
          ValueError: no label, a label other than the open group's, or a server added twice.
        """
        if self._current_group:
            if label and label != self._current_group:
                raise ValueError(
                    "The given label does not match the current group: "
                    f"{label} vs {self._current_group}."
                )
            label = self._current_group
        if not label:
            raise ValueError("Label should not be empty.")
        is_server = isinstance(node, base.Node) and bool(node.addresses)  # A mock is none.
        if is_server and any(node is known for known in self.get_all_nodes()):
            raise ValueError(
                f"this {type(node).__name__} is already in the program, and its address can have "
                "one server only; make another node"
            )
        self._groups.setdefault(label, []).append(node)
        return node.create_handle()

    def get_all_nodes(self) -> list[base.Node]:
        """Returns the nodes of all groups, in the order in which they were added."""
        return list(itertools.chain.from_iterable(self._groups.values()))


def make_program(*nodes: base.Node, name: str = "launchpad") -> Program:
    """Returns a program of `nodes`, each in a group named "node"."""
    program = Program(name)
    with program.group("node"):
        for node in nodes:
            program.add_node(node)
    return program
