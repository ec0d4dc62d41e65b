"""Addresses for tests of single nodes, without a launch."""

from __future__ import annotations

from collections.abc import Iterable

from launchpad.nodes import base


def bind_addresses(nodes: Iterable[base.Node]) -> None:
    """Gives every address of `nodes` a free port of this machine."""
    for node in nodes:
        node.bind_addresses()
