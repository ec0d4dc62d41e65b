"""Mutual authentication of remote calls: who may call, and whose answer is accepted.

All nodes of a program share a secret, which calls never contain. Every request carries a signature
in its metadata, which the server checks before it reads the request's body. Every answer carries
one as well, which the client checks before it unpickles anything.

A process that takes over the port of a dead node does not have the secret and can't learn it, so
its answers are rejected. It does receive signed requests, and may send what it received to others.
So the signature covers everything that is unpickled, the identity of the server, so that another
node of the same program is not mistaken for the one that was called, and a nonce of the server's
incarnation, so that no call that was meant for its predecessor runs in a restarted server. A client
learns the nonce from the server's refusal of its first call; it need not be kept secret.

This protects against processes that can open connections to a node. Connections between machines
are encrypted as well; see `certificates`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

SECRET_BYTES = 32
CLIENT_ID_BYTES = 16
NONCE_BYTES = 16

# These names end in -bin, as gRPC requires for binary metadata.
_REQUEST_KEY = "launchpad-request-bin"
_ANSWER_KEY = "launchpad-answer-bin"
_NONCE_KEY = "launchpad-nonce-bin"

# Hexadecimal secret of processes that share no program, and of programs that they may call.
SECRET_VARIABLE = "LAUNCHPAD_SECRET"

# A ticket names at most this many open calls: more than a server handles concurrently by default,
# and fewer than gRPC accepts in metadata.
MAX_OPEN_CALLS = 256

# Client, sequence number of the call, the last number that is confirmed, and the number of open
# calls that follow.
_TICKET = struct.Struct(f"<{CLIENT_ID_BYTES}sQQH")
_CALL = struct.Struct(f"<{CLIENT_ID_BYTES}sQ")
_NUMBER_BYTES = 8
_DIGEST_BYTES = _SIGNATURE_BYTES = hashlib.sha256().digest_size
# What follows the ticket: the nonce of the server and the digest of what it will unpickle.
_BOUND_BYTES = NONCE_BYTES + _DIGEST_BYTES


class Ticket(NamedTuple):
    """Identifies one call, however often it is sent.

    Attributes:
      client_id: Random bytes of the client.
      number: Sequence number of the call, from 1.
      num_answered: All calls of this client up to this number have been answered, except
        `open_calls`.
      open_calls: Numbers of the calls up to `num_answered` that still wait, at most MAX_OPEN_CALLS.
    """

    client_id: bytes
    number: int
    num_answered: int
    open_calls: tuple[int, ...] = ()


class Request(NamedTuple):
    """What a signature vouches for.

    Attributes:
      ticket: The ticket of the call.
      nonce: The nonce of the server that is meant; empty bytes while it is not known.
      digest: SHA-256 of the part of the body that gets unpickled.
    """

    ticket: Ticket
    nonce: bytes
    digest: bytes

    def is_about(self, pickled: Any) -> bool:
        """Returns whether this is what was signed."""
        return hmac.compare_digest(self.digest, hashlib.sha256(pickled).digest())


def sign_request(
    secret: bytes, identity: bytes, ticket: Ticket, nonce: bytes, pickled: Any
) -> tuple[tuple[str, bytes], ...]:
    """Returns the metadata of a request.

    Args:
      secret: The secret of the program.
      identity: The identity of the intended server; empty for any server of the program.
      ticket: The ticket of the call.
      nonce: The nonce of the intended server; empty while it is not known.
      pickled: The part of the body that gets unpickled.
    """
    client_id, number, num_answered, open_calls = ticket
    num_open = len(open_calls)
    packed = _TICKET.pack(client_id, number, num_answered, num_open)
    if open_calls:
        packed += struct.pack(f"<{num_open}Q", *open_calls)
    packed += nonce.ljust(NONCE_BYTES, b"\0") + hashlib.sha256(pickled).digest()
    return ((_REQUEST_KEY, packed + _sign(secret, b"request", identity, packed) + identity),)


def verify_request(secret: bytes, identity: bytes, metadata: Iterable[Any]) -> Request | None:
    """Returns what was signed of a request, or None if the request must be refused.

    Args:
      secret: The secret of the program.
      identity: The identity of this server: a request intended for another one is refused. Empty if
        the server is not that of a node.
      metadata: The metadata of the request, as pairs of key and value.
    """
    value = _value(metadata, _REQUEST_KEY)
    if len(value) < _TICKET.size:
        return None
    client_id, number, num_answered, num_open = _TICKET.unpack_from(value)
    ticket_end = _TICKET.size + num_open * _NUMBER_BYTES
    packed_end = ticket_end + _BOUND_BYTES
    signature_end = packed_end + _SIGNATURE_BYTES
    packed, signature = value[:packed_end], value[packed_end:signature_end]
    meant = value[signature_end:]
    if identity and meant not in (identity, b""):
        return None
    if not hmac.compare_digest(signature, _sign(secret, b"request", meant, packed)):
        return None
    open_calls = struct.unpack_from(f"<{num_open}Q", packed, _TICKET.size)
    ticket = Ticket(client_id, number, num_answered, open_calls)
    nonce, digest = packed[ticket_end:-_DIGEST_BYTES], packed[-_DIGEST_BYTES:]
    return Request(ticket, nonce, digest)


def tell_nonce(nonce: bytes) -> tuple[tuple[str, bytes], ...]:
    """Returns the trailing metadata of a refusal, from which a client learns the nonce."""
    return ((_NONCE_KEY, nonce),)


def told_nonce(metadata: Iterable[Any]) -> bytes:
    """Returns the nonce that a refusal tells, or empty bytes."""
    value = _value(metadata, _NONCE_KEY)
    return value if len(value) == NONCE_BYTES else b""


def sign_answer(secret: bytes, ticket: Ticket, pickled: Any) -> tuple[tuple[str, bytes], ...]:
    """Returns the trailing metadata of an answer; `pickled` is the part that gets unpickled."""
    return ((_ANSWER_KEY, _sign(secret, b"answer", _call(ticket), pickled)),)


def is_answer_of(secret: bytes, ticket: Ticket, pickled: Any, metadata: Iterable[Any]) -> bool:
    """Returns whether a process that has the secret gave this answer to this call."""
    expected = _sign(secret, b"answer", _call(ticket), pickled)
    return hmac.compare_digest(_value(metadata, _ANSWER_KEY), expected)


def of_user() -> bytes:
    """Returns the secret of processes outside a program, for their servers and clients.

    It is LAUNCHPAD_SECRET, or the contents of a file that only this user can read, made at first
    use; so two such processes of one user on one machine can call each other.

    Raises:
      ValueError: LAUNCHPAD_SECRET is not 32 bytes in hexadecimal digits, or the file not 32 bytes.
    """
    secret = _of_environment()
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


def of_program() -> bytes:
    """Returns the secret of a new program.

    It is LAUNCHPAD_SECRET, so that nodes and processes outside the program that know it can call
    each other; if that is not set, it is a new random one.

    Raises:
      ValueError: LAUNCHPAD_SECRET is not 32 bytes in hexadecimal digits.
    """
    return _of_environment() or secrets.token_bytes(SECRET_BYTES)


def _of_environment() -> bytes | None:
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


def _call(ticket: Ticket) -> bytes:
    """Returns the part of a ticket that is the same each time its call is sent."""
    return _CALL.pack(ticket.client_id, ticket.number)


def _sign(secret: bytes, kind: bytes, about: bytes, content: Any) -> bytes:
    # One-shot HMACs take a microsecond; the length keeps `about` and `content` apart.
    head = struct.pack("<I", len(about)) + about
    if len(content) <= 4096:
        return hmac.digest(secret, kind + head + content, "sha256")
    state = hmac.new(secret, kind + head, "sha256")
    state.update(content)
    return state.digest()


def _value(metadata: Iterable[Any], key: str) -> bytes:
    for name, value in metadata or ():
        if name == key:
            return value
    return b""
