"""TCP ports of this machine: choosing them, finding listeners, and restricting connections.

Linux only.
"""

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

_LOG = logging.getLogger(__name__)

# Set to 1 by `--open-ports`, for this process and those that it starts while it trains.
OPEN_PORTS = "RL_REPLICATOR_OPEN_PORTS"
# gRPC reads this name in lower case only, and `no_proxy` if it is not set.
_NO_PROXY = "no_grpc_proxy"
# Interval between the keepalive probes on an idle connection.
_PROBE_SECONDS = 4
# Both ends give up a silent connection after this time. The supervisor then starts the node
# elsewhere, and a node on a machine that was cut off must not continue as well. Connections survive
# shorter interruptions, and any load: it is the kernel of the other machine that answers.
SILENCE_SECONDS = 12.0
_INTERFACES = Path("/sys/class/net")
# By default, Linux gives sockets that ask for any port one from 32768.
_CHOSEN = range(20_000, 32_768)


class OpenPortError(ValueError):
    """A port would be open to other machines, which the user has not allowed."""


@contextlib.contextmanager
def allowing_open_ports(is_allowed: bool) -> Iterator[None]:
    """Allows this process and its children to open ports to other machines, inside the context.

    Args:
      is_allowed: the option `--open-ports`; if False, the environment variable decides.
    """
    before = os.environ.get(OPEN_PORTS)
    try:
        if is_allowed:
            os.environ[OPEN_PORTS] = "1"
        yield
    finally:
        if before is None:
            os.environ.pop(OPEN_PORTS, None)
        else:
            os.environ[OPEN_PORTS] = before


def choose(host: str = "", preferred: int = 0) -> int:
    """Chooses a port that a server may bind.

    No socket of this machine gets it that asks for any port.

    Args:
      host: address to bind to; empty for all.
      preferred: the port to choose if it is free; 0 for none.
    """
    port = preferred or _CHOSEN[secrets.randbelow(len(_CHOSEN))]
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
        port = _CHOSEN[secrets.randbelow(len(_CHOSEN))]


def check_loopback() -> None:
    """Checks that this machine can connect to itself, as Reverb's clients do.

    Raises:
      ConnectionError: if it can't, as in a new network namespace.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            socket.create_connection(listener.getsockname(), 5.0).close()
    except OSError as error:
        raise ConnectionError(
            f"expected a loopback interface, got {error.strerror or error}; start it: "
            "ip link set lo up"
        ) from None


def bypass_proxy(hosts: Iterable[str]) -> None:
    """Makes gRPC in this process connect to hosts directly, even if `http_proxy` is set.

    The servers of TensorFlow and Reverb would use the proxy, which reaches neither the loopback
    interface of this machine nor, usually, the hosts of a cluster. They have no other setting.

    Args:
      hosts: the names or addresses of machines.
    """
    text = os.environ.get(_NO_PROXY, os.environ.get("no_proxy", ""))
    direct = [host for host in text.split(",") if host]
    direct += [host for host in dict.fromkeys(hosts) if host not in direct]
    os.environ[_NO_PROXY] = ",".join(direct)


def give_up_silence(connection: socket.socket) -> None:
    """Makes a TCP connection fail when the other machine was silent for `SILENCE_SECONDS`."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _PROBE_SECONDS),
        (socket.TCP_KEEPINTVL, _PROBE_SECONDS),
        # Otherwise, unacknowledged data is sent again for some fifteen minutes.
        (socket.TCP_USER_TIMEOUT, int(1000 * SILENCE_SECONDS)),
        (socket.TCP_NODELAY, 1),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def confine_to_loopback(port: int, server: str, exposed: str, device: str = "lo") -> bool:
    """Lets only this machine connect to the sockets of this process that listen on a port.

    For servers that always listen on all network interfaces. A listening socket that is bound to
    the loopback interface accepts only connections to 127.0.0.1 and ::1. Unprivileged processes may
    do this on Linux 5.7 or newer.

    Args:
      port: TCP port.
      server: name of the server's library.
      exposed: the data that anyone who can connect can read and write.
      device: name of the loopback interface.

    Returns:
      Whether the port is confined; if not, the user has allowed open ports.

    Raises:
      OpenPortError: if it cannot be confined; see `check_may_be_open`.
    """
    name = device.encode() + b"\0"
    try:
        for listener in _own_listeners(port):
            with listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
    except OSError as error:
        check_may_be_open(
            port,
            server,
            exposed,
            f"it could not be confined to this machine: {error.strerror}; Linux 5.7 or newer "
            "allows it",
        )
        return False
    return True


def check_may_be_open(port: int, server: str, exposed: str, reason: str) -> None:
    """Checks that the user allows a port that other machines can reach; logs what it exposes.

    A machine whose only network interface is loopback needs no permission.

    Args:
      port: TCP port.
      server: name of the server's library.
      exposed: the data that anyone who can connect can read and write.
      reason: why the port is not confined to this machine.

    Raises:
      OpenPortError: if the user has not allowed it, by `--open-ports` or the environment.
    """
    interfaces = _outer_interfaces()
    if not interfaces:
        return
    found = (
        f"{server}'s port {port} is open on {', '.join(interfaces)}: anyone who reaches this "
        f"machine there can read and write {exposed} ({reason})"
    )
    if os.environ.get(OPEN_PORTS) == "1":
        _LOG.warning("%s", found)
        return
    raise OpenPortError(
        f"expected --open-ports, because {found}; close the port to strangers with a firewall or a "
        f"private network, then pass --open-ports or set {OPEN_PORTS}=1"
    )


def _outer_interfaces() -> list[str]:
    """Returns the names of the network interfaces through which other machines reach this one."""
    return [
        name
        for _, name in socket.if_nameindex()
        if name != "lo" and _read(_INTERFACES / name / "operstate") != "down"
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _own_listeners(port: int) -> Iterator[socket.socket]:
    """Yields duplicates of the sockets of this process that listen on a TCP port."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(descriptor)))
        except OSError:
            continue  # Closed in the meantime, like the descriptor of the directory itself.
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
        with contextlib.suppress(OSError):  # Closed in the meantime; see `_own_listeners`.
            own.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    listeners = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as lines:
                rows = [line.split() for line in lines][1:]
        except FileNotFoundError:
            continue  # This machine has no IPv6.
        for row in rows:
            is_listening = row[3] == "0A"
            if is_listening and int(row[1].rpartition(":")[2], 16) == port:
                listeners += f"socket:[{row[9]}]" not in own
    return listeners
