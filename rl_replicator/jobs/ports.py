"""Checks of the ports of a job's processes."""

import contextlib
import socket

from rl_replicator import errors


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
