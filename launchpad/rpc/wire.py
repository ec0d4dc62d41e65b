"""How calls and results look on the wire.

A message is a small header, a pickle (protocol 5), and the large buffers of the pickled arrays,
which are copied once, into the message, and used where they arrive. Arrays arrive writable.

    header   token (32 bytes) or status (1 byte), method name, sizes of the buffers
    pickle   the arguments or the result, without the large buffers
    buffers  each at a multiple of 16 bytes, where the processor wants arrays to begin
"""

from __future__ import annotations

import ctypes
import pickle
import struct
from typing import Any

import cloudpickle

TOKEN_BYTES = 32
# Below this many bytes an array travels inside the pickle: a buffer of its own costs more.
_LARGE_BUFFER_BYTES = 16 * 1024

# The data of a bytes object begins at a multiple of this, and so do its buffers then.
_ALIGNMENT = 16

OK, RAISED = b"\0", b"\1"

_COUNTS = struct.Struct("<HI")  # Length of the method name, number of buffers.
_SIZE = struct.Struct("<Q")


def encode(prefix: bytes, method: bytes, value: Any) -> bytes:
    """Returns the message of `value`, after `prefix` (a token or a status)."""
    buffers: list[memoryview] = []
    payload = _dumps(value, buffers)
    parts: list[Any] = [prefix, _COUNTS.pack(len(method), len(buffers)), method]
    parts.extend(_SIZE.pack(len(buffer)) for buffer in buffers)
    parts.append(_SIZE.pack(len(payload)))
    header_size = sum(map(len, parts)) + len(payload)
    parts.append(payload)
    if buffers:
        parts.append(bytes(_padded(header_size) - header_size))
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
        # What lives in the main script can't be imported by name in another process.
        if b"__main__" not in payload:
            return payload
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # A lambda or a local class: cloudpickle ships it by value.
    buffers.clear()
    return cloudpickle.dumps(value, protocol=5, buffer_callback=keep_inside)


def method_of(message: bytes, prefix_bytes: int) -> str:
    """Returns the method name of a message whose prefix has been checked already."""
    method_size, _ = _COUNTS.unpack_from(message, prefix_bytes)
    offset = prefix_bytes + _COUNTS.size
    return message[offset : offset + method_size].decode()


def decode(message: bytes, prefix_bytes: int) -> Any:
    """Returns the value of a message whose prefix has been checked already."""
    view = memoryview(message)
    method_size, num_buffers = _COUNTS.unpack_from(view, prefix_bytes)
    offset = prefix_bytes + _COUNTS.size + method_size
    sizes = [_SIZE.unpack_from(view, offset + i * _SIZE.size)[0] for i in range(num_buffers + 1)]
    offset += _SIZE.size * (num_buffers + 1)
    payload = view[offset : offset + sizes[-1]]
    offset = _padded(offset + sizes[-1])
    buffers = []
    if num_buffers:
        whole = _writable(message)
        for size in sizes[:-1]:
            buffers.append(whole[offset : offset + size])
            offset += _padded(size)
    return pickle.loads(payload, buffers=buffers)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _writable(message: bytes) -> memoryview:
    """Returns a writable view of a received message, which nobody else knows.

    Arrays made from a plain view of `bytes` would be read-only; copying large ones takes as long
    as receiving them. The message was allocated for this call alone and is not used as `bytes`
    any more, so that writing to it changes nothing else.
    """
    address = ctypes.cast(ctypes.c_char_p(message), ctypes.c_void_p).value
    assert address is not None
    array = (ctypes.c_char * len(message)).from_address(address)
    array.owner = message  # type: ignore[attr-defined] # The view keeps the message alive.
    return memoryview(array).cast("B")
