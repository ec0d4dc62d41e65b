"""The ports of a job's processes: whether they are free, and who may connect to them."""

import contextlib
import ipaddress
import socket
from collections.abc import Iterable

from rl_replicator import errors
from rl_replicator.processes import ports


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

    Args:
      own_address: `host:port` of this process, whose server is listening.
      addresses: of all processes of the job. The job is on one machine if all are of the loopback
        device.
      device: name of the loopback device.

    Returns:
      True if the port is confined; otherwise, a warning is logged if it should be.
    """
    if not all(_is_loopback(address) for address in addresses):
        return False
    port = int(own_address.rpartition(":")[2])
    return ports.confine_to_loopback(port, "TensorFlow", "your files", device)


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # The name of a machine.
