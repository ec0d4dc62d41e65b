"""The files that a replay server has written: reads, changes and serves their tables.

Reverb restores everything about a table from its files, including its settings, whatever table the
new server was made with.
"""

import contextlib
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import reverb
import tensorflow as tf
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2
from reverb.platform.checkpointers_lib import DefaultCheckpointer

from rl_replicator.processes import ports

_TABLES, _ITEMS = "tables.tfrecord", "items.tfrecord"
_COMPRESSION = "ZLIB"
# Bytes of a TFRecord before its data (length with checksum) and after it (checksum).
_HEADER, _FOOTER = 12, 4
# Beyond any difference between samples and inserts.
_NO_LIMIT = 1e300


def change(folder: Path, change_table: Callable[[Any], None]) -> None:
    """Changes the settings of the tables in files.

    Args:
      folder: a folder that a server has written.
      change_table: is called with each `PriorityTableCheckpoint`, and changes it in place.
    """
    path = folder / _TABLES
    tables = read(folder)
    with tf.io.TFRecordWriter(str(path), _COMPRESSION) as writer:
        for table in tables:
            change_table(table)
            writer.write(table.SerializeToString())


def read(folder: Path) -> list[Any]:
    """Returns the settings of the tables in files, a `PriorityTableCheckpoint` each."""
    parse = checkpoint_pb2.PriorityTableCheckpoint.FromString
    return [parse(record) for record in _records(folder / _TABLES)]


def read_items(folder: Path) -> list[Any]:
    """Returns what files hold of each item, a `PrioritizedItem`, the oldest first."""
    parse = schema_pb2.PrioritizedItem.FromString
    return [parse(record) for record in _records(folder / _ITEMS)]


def _records(path: Path) -> Iterator[bytes]:
    # Without tf.data, which would initialise the devices of a process in which a learner may run
    # later.
    data, start = zlib.decompress(path.read_bytes()), 0
    while start < len(data):
        (size,) = struct.unpack_from("<Q", data, start)
        yield data[start + _HEADER : start + _HEADER + size]
        start += _HEADER + size + _FOOTER


def lift_limit(table: Any) -> None:
    """Lets a table be filled and sampled without a rate limit.

    Args:
      table: the `PriorityTableCheckpoint`.
    """
    table.rate_limiter.min_size_to_sample = 1
    table.rate_limiter.min_diff, table.rate_limiter.max_diff = -_NO_LIMIT, _NO_LIMIT


@contextlib.contextmanager
def served(
    tables: Sequence[reverb.Table], scratch: Path, stored: Path | None = None
) -> Iterator[reverb.Client]:
    """Serves tables in this process.

    Args:
      tables: the tables of the server.
      scratch: folder to make, for what the client has the server write.
      stored: files to restore the tables from.

    Yields:
      A client.
    """
    scratch.mkdir(parents=True)
    server = reverb.Server(
        tables,
        checkpointer=DefaultCheckpointer(
            str(scratch), fallback_checkpoint_path=None if stored is None else str(stored)
        ),
    )
    try:
        ports.bypass_proxy(["localhost"])
        yield reverb.Client(f"localhost:{server.port}")
    finally:
        server.stop()
