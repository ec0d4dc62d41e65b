"""Finds a process's listening sockets and checks who can connect to them."""

import socket

import psutil


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    """Returns (address, port) of all TCP sockets on which a process and its descendants listen."""
    found = set()
    for each in [process, *process.children(recursive=True)]:
        for connection in each.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.add((connection.laddr.ip, connection.laddr.port))
    return found


def outer_addresses() -> list[str]:
    """Returns this machine's addresses other than loopback and link-local IPv6 ones."""
    return [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
        and not address.address.startswith(("127.", "::1", "fe80:"))
    ]


def accepts(address: str, port: int) -> bool:
    """Returns whether something accepts connections at an address and port of this machine."""
    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError:
        return False
    return True
