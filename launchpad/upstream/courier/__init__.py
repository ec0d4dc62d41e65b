"""Servers and clients outside of programs, under the name that upstream's wheel gives them."""

from launchpad.rpc.courier import Client, Server, StatusNotOk, list_methods

__all__ = ["Client", "Server", "StatusNotOk", "list_methods"]
