"""An encrypted tunnel to a server on another machine, for the processes of its program only.

For servers without authentication and encryption, such as Reverb's, to which only their own machine
can connect. At the machine's own address, the tunnel accepts connections that present a certificate
of the program, and forwards them. A client on another machine connects to a port of its own
machine, from which the tunnel leads to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

from launchpad.rpc import tls
from rl_replicator.processes import ports

# Size of one read: large samples pass in few pieces.
_CHUNK_BYTES = 1 << 20
_HANDSHAKE_SECS = 10.0

_Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def serve(host: str, port: int, secret: bytes, path: Path | None = None) -> int:
    """Forwards clients on other machines to a server that only this machine can connect to.

    The tunnel lasts until this process ends.

    Args:
      host: IP address of this machine, not a loopback one.
      port: Port of a server that is confined to the loopback interface; 0 for any free one.
      secret: The secret of the program.
      path: Unix socket of the server; None if it listens at the port.

    Returns:
      The port at which the tunnel listens.

    Raises:
      OSError: the port is taken.
    """
    listener = socket.socket()
    # The confined server uses the same port on another device, so all of the sockets need these.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, port))
    listener.listen(128)
    shown = tls.context(secret, is_server=True)
    if path is None:
        _listen(listener, lambda: _open(tls.LOOPBACK, port, None), shown)
    else:
        _listen(listener, lambda: asyncio.open_unix_connection(path, limit=_CHUNK_BYTES), shown)
    return int(listener.getsockname()[1])


def connect(address: str, secret: bytes) -> str:
    """Returns the address of a port of this machine that leads to a server on another one.

    The tunnel lasts until this process ends. It connects to the server when a client connects to
    it; if that fails, it closes the client's connection, and the client tries again.

    Args:
      address: "host:port" at which `serve` listens.
      secret: The secret of the program.
    """
    host, _, port = address.rpartition(":")
    listener = socket.create_server((tls.LOOPBACK, 0))
    shown = tls.context(secret, is_server=False)
    _listen(listener, lambda: _open(host, int(port), shown), None)
    return f"{tls.LOOPBACK}:{listener.getsockname()[1]}"


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of all tunnels of this process, which runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="tunnel", daemon=True).start()
    return loop


def _listen(listener: socket.socket, connect: _Connect, shown: ssl.SSLContext | None) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            ports.give_up_silence(writer.get_extra_info("socket"))
            await _join(reader, writer, *await connect())
        writer.close()

    timeout = None if shown is None else _HANDSHAKE_SECS
    server = asyncio.start_server(
        accept, sock=listener, ssl=shown, limit=_CHUNK_BYTES, ssl_handshake_timeout=timeout
    )
    asyncio.run_coroutine_threadsafe(server, _loop()).result()


async def _open(
    host: str, port: int, shown: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    timeout = None if shown is None else _HANDSHAKE_SECS
    reader, writer = await asyncio.open_connection(
        host, port, ssl=shown, limit=_CHUNK_BYTES, ssl_handshake_timeout=timeout
    )
    ports.give_up_silence(writer.get_extra_info("socket"))
    return reader, writer


async def _join(
    near_reader: asyncio.StreamReader,
    near_writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
) -> None:
    """Forwards bytes between two connections until one of them ends; then closes both."""
    ways = [
        asyncio.ensure_future(_pass_on(near_reader, far_writer)),
        asyncio.ensure_future(_pass_on(far_reader, near_writer)),
    ]
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    near_writer.close()
    far_writer.close()
    await asyncio.wait(ways)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # SSLError is one, too.
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
