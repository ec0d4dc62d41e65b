"""Nodes and handles."""

from __future__ import annotations

import abc
from typing import Any, Generic, TypeVar

from launchpad import address as lp_address
from launchpad.nodes import dereference

ClientType = TypeVar("ClientType")
HandleType = TypeVar("HandleType", bound="Handle")


class Handle(dereference.Dereferenceable[ClientType], Generic[ClientType]):
    """Stands for a node in the arguments of other nodes; they get its client instead."""


class Node(abc.ABC, Generic[HandleType]):
    """One role of the program: a function, an object, or a server.

    Attributes:
      addresses: Addresses that this node serves.
      stops_last: True for stores that others write to until their own end: they are released
        only after all other nodes have ended.
    """

    stops_last = False

    def __init__(self) -> None:
        self.addresses: list[lp_address.Address] = []
        self._input_handles: list[Handle[Any]] = []
        self._created_handles: list[Handle[Any]] = []

    @abc.abstractmethod
    def create_handle(self) -> HandleType:
        """Returns a new handle to this node."""

    @abc.abstractmethod
    def execute(self) -> Any:
        """Runs the node in the calling thread until it ends; called by engines."""

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
    """Returns the handles in `tree`, those inside `Deferred` arguments included."""
    found: list[Handle[Any]] = []

    def visit(leaf: Any) -> Any:
        if isinstance(leaf, dereference.Deferred):
            dereference.map_tree(visit, leaf.arguments)
        elif isinstance(leaf, Handle):
            found.append(leaf)
        return leaf

    dereference.map_tree(visit, tree)
    return found
