"""The ports of a job's processes: whether they are free, and who may connect to them."""

import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import Iterable, Iterator

from rl_replicator import errors

_LOG = logging.getLogger(__name__)


def check_is_free(address: str) -> None:
    """Checks that no other process listens on the port of this process.

    TensorFlow's server would share the port with it, without an error.

    Args:
      address: `host:port` of this process.

    Raises:
      ConfigError: if another process listens there.
    """
    with contextlib.closing(socket.socket()) as trial:
        # Otherwise the port would be taken for minutes after a crash of this process.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", int(address.rpartition(":")[2])))
        except OSError as error:
            raise errors.ConfigError(
                f"expected the port of {address} to be free for this process, got "
                f"{error.strerror}; end the process that listens there, or choose another port"
            ) from None


def check_reachable(address: str, timeout: float = 1.0) -> None:
    """Checks that a process listens at an address.

    Args:
      address: `host:port`.
      timeout: seconds to wait for the connection.

    Raises:
      OSError: if nothing listens there.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout).close()


def confine_if_local(own_address: str, addresses: Iterable[str], device: str = "lo") -> bool:
    """Lets only this machine connect to TensorFlow's server, if the whole job is on it.

    The server listens on all network interfaces, whatever its address is. A listening socket that
    is bound to the loopback device accepts connections to 127.0.0.1 and ::1 alone. Unprivileged
    processes may do this on Linux 5.7 or newer. Elsewhere a warning is logged.

    Args:
      own_address: `host:port` of this process, whose server is listening.
      addresses: of all processes of the job. The job is on one machine if all are of the loopback
        device.
      device: name of the loopback device.

    Returns:
      True if the port is confined.
    """
    if not all(_is_loopback(address) for address in addresses):
        return False
    port = int(own_address.rpartition(":")[2])
    try:
        for listener in _own_listeners(port):
            with listener:
                name = device.encode() + b"\0"
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
    except OSError as error:
        _LOG.warning(
            "TensorFlow's port %d is open to every machine that reaches this one: anyone there can "
            "read and write your files. It could not be confined to this machine (%s; Linux 5.7 or "
            "newer allows it). Close the port with a firewall",
            port,
            error.strerror,
        )
        return False
    return True


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # The name of a machine.


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
