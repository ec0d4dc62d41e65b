"""Who may call whom: sockets of one user on one machine, certificates of one program elsewhere.

Remote calls carry pickles, so both ends of a connection must be processes of one program. Within a
machine, they meet at unix sockets in a folder that only their user can enter. All other connections
use mutual TLS: every process derives the same authority from the program's secret, and issues
itself a certificate. Both ends present one, and accept only those of this authority. A process that
takes over the port of a dead node learns nothing, because no connection to it is ever established.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import secrets
import socket
import ssl
import stat
import time
from pathlib import Path
from typing import NamedTuple

import grpc

SECRET_BYTES = 32
# Hexadecimal secret of processes that share no program, and of programs that they may call.
SECRET_VARIABLE = "LAUNCHPAD_SECRET"

LOOPBACK = "127.0.0.1"
_UNIX = "unix:"
# Sockets of dead processes remain; a younger one may be that of a server that is just starting.
_STALE_SECS = 60.0

_NAME = "launchpad"
# Longer than any program runs; the clocks of machines may differ by years.
_VALID = (datetime.datetime(2020, 1, 1), datetime.datetime(2120, 1, 1))


# -- secrets --------------------------------------------------------------------------------------


def secret_of_user() -> bytes:
    """Returns the secret of processes outside a program, for their servers and clients.

    It is LAUNCHPAD_SECRET, or the contents of a file that only this user can read, made at first
    use; so two such processes of one user on one machine can call each other.

    Raises:
      ValueError: LAUNCHPAD_SECRET is not 32 bytes in hexadecimal digits, or the file not 32 bytes.
    """
    secret = _secret_of_environment()
    if secret is not None:
        return secret
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = state / "rl-replicator" / "launchpad-secret"
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(secrets.token_bytes(SECRET_BYTES))
            out.flush()
            os.fsync(out.fileno())  # Otherwise a system crash could leave an empty file.
        try:
            os.link(new, file)  # Unlike a rename, it never replaces the file of another process.
        except FileExistsError:
            pass
        finally:
            new.unlink()
    secret = file.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise ValueError(
            f"expected a secret of {SECRET_BYTES} bytes in {file}, got {len(secret)} bytes; remove "
            "the file, and the next process makes a new one"
        )
    return secret


def secret_of_program() -> bytes:
    """Returns the secret of a new program.

    It is LAUNCHPAD_SECRET, so that nodes and processes outside the program that know it can call
    each other; if that is not set, it is a new random one.

    Raises:
      ValueError: LAUNCHPAD_SECRET is not 32 bytes in hexadecimal digits.
    """
    return _secret_of_environment() or secrets.token_bytes(SECRET_BYTES)


def _secret_of_environment() -> bytes | None:
    text = os.environ.get(SECRET_VARIABLE)
    if text is None:
        return None
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ValueError(
            f"expected {SECRET_VARIABLE} with {2 * SECRET_BYTES} hexadecimal digits, got "
            f"{len(text)} characters; make one with: python -c 'import secrets; "
            f"print(secrets.token_hex({SECRET_BYTES}))'"
        )
    return secret


# -- sockets of this machine ----------------------------------------------------------------------


def socket_address(name: str) -> str:
    """Returns the address of a socket that only processes of this user can reach.

    Args:
      name: Name of the server, unique on this machine; its successor may use the same one.

    Raises:
      PermissionError: another account has made the folder of the sockets.
    """
    # Not in TMPDIR: the path of a socket has at most 107 bytes. The folder is never removed, so no
    # other account can put its own in the place of one that a client still remembers.
    folder = Path(f"/tmp/launchpad-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_private(folder)
    for path in folder.iterdir():
        _remove_stale(path)
    return f"{_UNIX}{folder / name}"


def _check_private(folder: Path) -> None:
    found = folder.lstat()
    is_open = bool(found.st_mode & 0o077) or not stat.S_ISDIR(found.st_mode)
    if is_open or found.st_uid != os.geteuid():
        raise PermissionError(
            f"{folder} must be a folder that only this user can enter, since processes that trust "
            f"each other meet there; it belongs to user {found.st_uid} and has the mode "
            f"{stat.filemode(found.st_mode)}: remove it, or let its owner do so"
        )


def _remove_stale(path: Path) -> None:
    """Removes the socket of a process that was killed."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        if time.time() - path.stat().st_mtime > _STALE_SECS:
            probe.settimeout(0.1)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()


# -- certificates ---------------------------------------------------------------------------------


class Certificates(NamedTuple):
    """What a process presents and trusts, as PEM.

    Attributes:
      authority: Certificate of the program's authority, the only one that is trusted.
      certificate: Certificate of this process.
      key: Private key of this process.
    """

    authority: bytes
    certificate: bytes
    key: bytes


@functools.lru_cache(maxsize=8)
def certificates(secret: bytes, identity: str = "") -> Certificates:
    """Makes the certificates of this process.

    Args:
      secret: The secret of the program.
      identity: The identity of the server that presents them; empty if it is not that of a node.
    """
    # Only programs on several machines pay for this import.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.kdf import hkdf

    curve = ec.SECP256R1()
    derive = hkdf.HKDF(hashes.SHA256(), 32, salt=None, info=b"launchpad certificate authority")
    # 255 bits are always below the order of the curve; 256 bits may not be.
    number = int.from_bytes(derive.derive(secret), "big") >> 1
    authority_key = ec.derive_private_key(max(number, 1), curve)
    own_key = ec.generate_private_key(curve)
    authority = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "launchpad authority")])
    own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])

    def issue(name: x509.Name, key: ec.EllipticCurvePublicKey, is_authority: bool) -> bytes:
        builder = x509.CertificateBuilder(
            authority, name, key, x509.random_serial_number(), *_VALID
        ).add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        if not is_authority:
            names = [x509.DNSName(each) for each in {_NAME, _server_name(identity)}]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(authority_key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    return Certificates(
        issue(authority, authority_key.public_key(), True),
        issue(own, own_key.public_key(), False),
        own_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _server_name(identity: str) -> str:
    """Returns the name in the certificate of the server with this identity."""
    return f"{identity}.{_NAME}" if identity else _NAME


def channel(
    address: str,
    secret: bytes,
    identity: str,
    options: list[tuple[str, object]],
    compression: grpc.Compression | None,
) -> grpc.Channel:
    """Returns a gRPC channel that can only reach a server of the program.

    Args:
      address: "host:port", or "unix:PATH".
      secret: The secret of the program.
      identity: The identity of the intended server; empty for any server of the program.
      options: gRPC's options.
      compression: gRPC's setting.

    Raises:
      PermissionError: another account can reach the socket.
    """
    if address.startswith(_UNIX):
        with contextlib.suppress(FileNotFoundError):  # Then there is nobody to call either.
            _check_private(Path(address.removeprefix(_UNIX)).parent)
        return grpc.insecure_channel(address, options, compression)
    authority, certificate, key = certificates(secret)
    trusted = grpc.ssl_channel_credentials(authority, key, certificate)
    name = ("grpc.ssl_target_name_override", _server_name(identity))
    # A host whose network falls silent closes no connection. These notice it within 14 seconds, and
    # a busy host has ten of them to answer.
    keepalive = [
        ("grpc.keepalive_time_ms", 4_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    return grpc.secure_channel(address, trusted, [*options, *keepalive, name], compression)


def add_port(server: grpc.Server, address: str, secret: bytes, identity: str) -> int:
    """Makes a gRPC server listen for processes of its program.

    Args:
      server: The server.
      address: "host:port" with an IP address, and port 0 for any free one; or "unix:PATH".
      secret: The secret of the program.
      identity: The identity of the node that is served; empty if there is none.

    Returns:
      The port; 1 for a unix socket.

    Raises:
      OSError: it cannot be bound.
    """
    try:
        if address.startswith(_UNIX):
            bound = server.add_insecure_port(address)
        else:
            authority, certificate, key = certificates(secret, identity)
            shown = grpc.ssl_server_credentials([(key, certificate)], authority, True)
            bound = server.add_secure_port(address, shown)
    except RuntimeError:
        bound = 0
    if not bound:
        host, _, port = address.rpartition(":")
        if port != "0":
            raise OSError(
                f"port {port} of {host} is taken; choose another one, or none to get a free one"
            )
        raise OSError(f"no port of {host} can be bound; is it an address of this machine?")
    return bound


def context(secret: bytes, is_server: bool) -> ssl.SSLContext:
    """Returns the SSL context of a socket, which accepts only processes of the program.

    Args:
      secret: The secret of the program.
      is_server: Whether it is for the side that accepts connections.
    """
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    found.minimum_version = ssl.TLSVersion.TLSv1_3
    found.check_hostname = False  # The authority vouches for this program and for nothing else.
    found.verify_mode = ssl.CERT_REQUIRED
    authority, certificate, key = certificates(secret)
    found.load_verify_locations(cadata=authority.decode())
    # Python loads a chain only from a file; this one is in memory, for this process alone.
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(certificate + key)
        file.flush()
        found.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return found
