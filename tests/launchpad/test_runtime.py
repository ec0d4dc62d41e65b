"""The addresses of nodes that were restarted."""

from __future__ import annotations

import socket

import launchpad as lp
from launchpad import runtime as lp_runtime


def _runtime(book=None, host="127.0.0.1") -> lp_runtime.NodeRuntime:
    info = lp_runtime.ProgramInfo("id", b"", lp.LaunchType.TEST_MULTI_THREADING, host, {})
    book = {} if book is None else book
    return lp_runtime.NodeRuntime("node", 0, info, book, lambda *told: None)


def test_a_node_that_was_started_again_takes_its_old_address_only_if_it_can():
    book: dict[str, str] = {}

    def resolve(host="127.0.0.1"):
        """Resolves the address in a new incarnation of the node, which then ends."""
        runtime = _runtime(book, host)
        runtime.owned_keys = frozenset(["key"])
        address = runtime.resolve("key", None)
        assert address == runtime.resolve("key", None) == book.get("key")
        return address

    first = resolve()
    assert resolve() == first
    with socket.create_server(("127.0.0.1", int(first.rpartition(":")[2]))):
        assert resolve() != first
    book["key"] = "10.1.2.3:99"  # On a machine that was lost.
    assert resolve().startswith("127.0.0.1:")
    book["key"] = first
    assert resolve("127.0.0.2").startswith("127.0.0.2:")
