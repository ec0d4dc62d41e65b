"""Encryption between machines: certificates that only the processes of one program can make.

Every process derives the same authority from the program's secret, and issues itself a certificate.
Both ends of a connection present one, and accept only those of this authority. Connections within a
machine are not encrypted: whoever can read them there can read the memory of the processes, too.
"""

from __future__ import annotations

import datetime
import functools
import ipaddress
import os
import ssl
from typing import NamedTuple

import grpc

# All servers of a program have this name; the intended server is part of a call's signature.
_NAME = "launchpad"
_NAME_OPTION = ("grpc.ssl_target_name_override", _NAME)
# Longer than any program runs; the clocks of machines may differ by years.
_VALID = (datetime.datetime(2020, 1, 1), datetime.datetime(2120, 1, 1))


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


def is_local(host: str) -> bool:
    """Returns whether connections to a host stay inside this machine.

    Args:
      host: IP address or name.
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@functools.lru_cache(maxsize=8)
def of_program(secret: bytes) -> Certificates:
    """Makes the certificates of this process.

    Args:
      secret: The secret of the program.
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
            names = x509.SubjectAlternativeName([x509.DNSName(_NAME)])
            builder = builder.add_extension(names, critical=False)
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


def channel(
    address: str, secret: bytes, options: list[tuple[str, object]], compression: object
) -> grpc.Channel:
    """Returns a gRPC channel, which is encrypted unless its server is on this machine.

    Args:
      address: "host:port".
      secret: The secret of the program.
      options: gRPC's options.
      compression: gRPC's setting.
    """
    if is_local(address.rpartition(":")[0]):
        return grpc.insecure_channel(address, options=options, compression=compression)
    authority, certificate, key = of_program(secret)
    trusted = grpc.ssl_channel_credentials(authority, key, certificate)
    return grpc.secure_channel(address, trusted, [*options, _NAME_OPTION], compression)


def add_port(server: grpc.Server, host: str, port: int, secret: bytes) -> int:
    """Makes a gRPC server listen, with encryption unless only this machine can connect.

    Args:
      server: The server.
      host: IP address to bind.
      port: Port to bind; 0 for any free one.
      secret: The secret of the program.

    Returns:
      The port.

    Raises:
      RuntimeError: it cannot be bound.
    """
    if is_local(host):
        return server.add_insecure_port(f"{host}:{port}")
    authority, certificate, key = of_program(secret)
    shown = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    return server.add_secure_port(f"{host}:{port}", shown)


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
    authority, certificate, key = of_program(secret)
    found.load_verify_locations(cadata=authority.decode())
    # Python loads a chain only from a file; this one is in memory, for this process alone.
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(certificate + key)
        file.flush()
        found.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return found
