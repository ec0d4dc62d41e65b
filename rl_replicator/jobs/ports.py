"""The ports of a job's processes: whether they are free, and who may connect to them."""

import contextlib
import ipaddress
import socket
from collections.abc import Iterable

from rl_replicator import errors
from rl_replicator.processes import ports


def check_may_listen(own_address: str, addresses: Iterable[str]) -> None:
    """Checks that TensorFlow's server may be started at the address of this process.

    The server would share the port with another process without an error, and it gives everyone who
    can connect access to the user's files.

    Args:
      own_address: `host:port` of this process.
      addresses: the addresses of all processes of the job.

    Raises:
      ConfigError: if another process listens there.
      OpenPortError: if the job is on several machines, and the user has not allowed open ports.
    """
    _check_is_free(own_address)
    if not all(_is_loopback(address) for address in addresses):
        port = int(own_address.rpartition(":")[2])
        reason = "the job has processes on other machines"
        ports.check_may_be_open(port, "TensorFlow", "your files", reason)


def _check_is_free(address: str) -> None:
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


def bypass_proxy(addresses: Iterable[str]) -> None:
    """Lets TensorFlow connect to the processes of a job directly, even if `http_proxy` is set.

    Args:
      addresses: the addresses of all processes of the job.
    """
    ports.bypass_proxy(_host(address) for address in addresses)


def check_reachable(address: str) -> None:
    """Checks that a process listens at an address.

    Args:
      address: `host:port`.

    Raises:
      OSError: if nothing listens there.
    """
    port = int(address.rpartition(":")[2])
    socket.create_connection((_host(address), port), timeout=1.0).close()


def confine_if_local(own_address: str, addresses: Iterable[str], device: str = "lo") -> bool:
    """Lets only this machine connect to TensorFlow's server, if the whole job is on it.

    Args:
      own_address: `host:port` of this process, whose server is listening.
      addresses: the addresses of all processes of the job. The job is on one machine if all of them
        are loopback addresses.
      device: name of the loopback interface.

    Returns:
      Whether the port is confined.

    Raises:
      OpenPortError: if the port cannot be confined, and the user has not allowed open ports.
    """
    if not all(_is_loopback(address) for address in addresses):
        return False
    port = int(own_address.rpartition(":")[2])
    return ports.confine_to_loopback(port, "TensorFlow", "your files", device)


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _is_loopback(address: str) -> bool:
    host = _host(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # A host name.
