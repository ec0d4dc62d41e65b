"""The format of requests and answers.

A message is a small header, a pickle (protocol 5), and the large buffers of the pickled arrays,
which are copied once, into the message, and used in place by the receiver, as writable arrays.

    header   status (answers only, 1 byte), sizes, method name
    pickle   the arguments or the result, without the large buffers
    buffers  each at a multiple of 16 bytes, the alignment that the processor prefers for arrays

Whoever receives a message unpickles it, so messages pass only between processes that trust each
other; see `launchpad.rpc.tls`.
"""

from __future__ import annotations

import ctypes
import pickle
import struct
from typing import Any

from launchpad import pickling

# Smaller arrays, in bytes, are sent inside the pickle: a buffer of their own costs more.
_LARGE_BUFFER_BYTES = 16 * 1024

# The data of a bytes object begins at a multiple of this, and so do its buffers then.
_ALIGNMENT = 16

OK, RAISED = b"\0", b"\1"

# Length of the method name, number of buffers, size of the pickle; the buffers' sizes follow.
_HEADER = struct.Struct("<HIQ")
_SIZE = struct.Struct("<Q")


def encode(prefix: bytes, method: bytes, value: Any) -> bytes:
    """Returns the message of a value.

    Args:
      prefix: Empty for a request; OK or RAISED for an answer.
      method: Name of the method; empty for an answer.
      value: What to pickle.
    """
    buffers: list[memoryview] = []
    payload = _dumps(value, buffers)
    header = _HEADER.pack(len(method), len(buffers), len(payload))
    if not buffers:
        return b"".join((prefix, header, method, payload))
    parts: list[Any] = [prefix, header, *(_SIZE.pack(len(buffer)) for buffer in buffers), method]
    start = sum(map(len, parts)) + len(payload)
    parts += [payload, bytes(_padded(start) - start)]
    for buffer in buffers:
        parts.append(buffer)
        parts.append(bytes(_padded(len(buffer)) - len(buffer)))
    return b"".join(parts)


def _dumps(value: Any, buffers: list[memoryview]) -> bytes:
    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # Not contiguous.
            return True
        if raw.nbytes < _LARGE_BUFFER_BYTES:
            return True
        buffers.append(raw)
        return False

    try:
        payload = pickle.dumps(value, protocol=5, buffer_callback=keep_inside)
        # What is defined in the main script can't be imported by name in another process.
        if b"__main__" not in payload:
            return payload
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # A lambda or a local class.
    buffers.clear()
    return pickling.dumps(value, keep_inside)


def method_of(message: bytes) -> str:
    """Returns the method name of a request."""
    method_size, num_buffers, _ = _HEADER.unpack_from(message)
    offset = _HEADER.size + num_buffers * _SIZE.size
    return message[offset : offset + method_size].decode()


def decode(message: bytes, prefix_bytes: int) -> Any:
    """Returns the value of a message."""
    method_size, num_buffers, payload_size = _HEADER.unpack_from(message, prefix_bytes)
    sizes_at = prefix_bytes + _HEADER.size
    payload_at = sizes_at + num_buffers * _SIZE.size + method_size
    offset = payload_at + payload_size
    payload = memoryview(message)[payload_at:offset]
    if not num_buffers:
        return pickle.loads(payload)
    buffers = []
    whole = _writable(message)
    offset = _padded(offset)
    for i in range(num_buffers):
        (size,) = _SIZE.unpack_from(message, sizes_at + i * _SIZE.size)
        buffers.append(whole[offset : offset + size])
        offset += _padded(size)
    return pickle.loads(payload, buffers=buffers)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _writable(message: bytes) -> memoryview:
    """Returns a writable view of a received message, to which nothing else refers.

    Arrays made from a plain view of `bytes` would be read-only; copying large ones takes as long
    as receiving them, because each copy is in fresh pages. The message was allocated for this call
    alone and is not used as `bytes` any more, so that writing to it changes nothing else.
    """
    address = ctypes.cast(ctypes.c_char_p(message), ctypes.c_void_p).value
    assert address is not None
    array = (ctypes.c_char * len(message)).from_address(address)
    array.owner = message  # type: ignore[attr-defined] # The view keeps the message alive.
    return memoryview(array).cast("B")
