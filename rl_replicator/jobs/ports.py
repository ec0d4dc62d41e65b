"""The ports of a job's processes: taken, free, answering."""

import contextlib
import socket

from rl_replicator import errors


def check_is_free(address: str) -> None:
    """Refuses an own address on which somebody else listens.

    TensorFlow's server would share the port with them without a word.

    Raises:
      ConfigError: names the address.
    """
    with contextlib.closing(socket.socket()) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # After an own crash.
        try:
            trial.bind(("", int(address.rpartition(":")[2])))
        except OSError as error:
            raise errors.ConfigError(
                f"expected the port of {address} to be free for this process, got "
                f"{error.strerror}; end the process that listens there, or choose another port"
            ) from None


def check_reachable(address: str, timeout: float = 1.0) -> None:
    """Raises `OSError` unless somebody listens at `address`: a process, or its kernel."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout).close()
