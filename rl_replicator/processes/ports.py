"""TCP ports of this machine: their reservation, who listens there, and who may connect.

Linux only.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator

_LOG = logging.getLogger(__name__)


def reserve(host: str) -> socket.socket:
    """Reserves a port, which no other bind to port 0 on this machine gets while it is reserved.

    Args:
      host: address to bind to; empty for all.

    Returns:
      A socket that is bound to the port and does not listen. Servers that set SO_REUSEADDR (those
      of gRPC, Reverb and TensorFlow do) can bind the port and listen nevertheless. Closing the
      socket ends the reservation.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((host, 0))
    return holder


def confine_to_loopback(port: int, server: str, exposed: str, device: str = "lo") -> bool:
    """Lets only this machine connect to the sockets of this process that listen on a port.

    For servers that listen on all network interfaces, whatever they are told. A listening socket
    that is bound to the loopback device accepts connections to 127.0.0.1 and ::1 alone.
    Unprivileged processes may do this on Linux 5.7 or newer. Elsewhere a warning is logged.

    Args:
      port: TCP port.
      server: name of the server's library, for the warning.
      exposed: what everybody can read and write who can connect, for the warning.
      device: name of the loopback device.

    Returns:
      True if the port is confined.
    """
    name = device.encode() + b"\0"
    try:
        for listener in _own_listeners(port):
            with listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
    except OSError as error:
        _LOG.warning(
            "%s's port %d is open to every machine that reaches this one: anyone there can read "
            "and write %s. It could not be confined to this machine (%s; Linux 5.7 or newer allows "
            "it). Close the port with a firewall",
            server,
            port,
            exposed,
            error.strerror,
        )
        return False
    return True


def _own_listeners(port: int) -> Iterator[socket.socket]:
    """Yields duplicates of the sockets of this process that listen on a TCP port."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(descriptor)))
        except OSError:
            continue  # Closed meanwhile, as the directory's own descriptor is.
        if _listens(found) and found.getsockname()[1] == port:
            yield found
        else:
            found.close()


def _listens(found: socket.socket) -> bool:
    is_tcp = found.type == socket.SOCK_STREAM and found.family != socket.AF_UNIX
    return is_tcp and bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def count_foreign(port: int) -> int:
    """Counts the sockets of other processes that listen on a port of this machine.

    Args:
      port: TCP port.
    """
    own = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # Closed meanwhile, as the directory's own one is.
            own.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    listeners = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as lines:
                rows = [line.split() for line in lines][1:]
        except FileNotFoundError:
            continue  # No IPv6 here.
        for row in rows:
            is_listening = row[3] == "0A"
            if is_listening and int(row[1].rpartition(":")[2], 16) == port:
                listeners += f"socket:[{row[9]}]" not in own
    return listeners
