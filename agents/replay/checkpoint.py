"""The replay table inside a run's checkpoint."""

import errno
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import reverb
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2
from reverb.platform.checkpointers_lib import CheckpointerBase, DefaultCheckpointer

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.manifest import link_or_copy
from rl_replicator.runs.run_directory import RunDirectory

_FULL_DISK_BYTES = 1 << 20
TABLES_FILE, _ITEMS_FILE = "tables.tfrecord", "items.tfrecord"
# Bytes of a TFRecord before its data (length with checksum) and after it (checksum).
_HEADER, _FOOTER = 12, 4


class ReplayError(Exception):
    """The replay server did not write its tables: it died, and may be restarting."""


class ReplayPart:
    """Lets the replay server write its tables, and moves them into the checkpoint.

    The server's folder and the checkpoints must be on one file system that the learner sees. A
    server loads a checkpoint only when it starts.
    """

    def __init__(self, client: reverb.Client):
        """Stores the client.

        Args:
          client: the client of the replay server.
        """
        self._client = client

    def save(self, folder: Path) -> None:
        """Writes the tables; inserts and samples may wait meanwhile.

        Raises:
          OSError: if the disk is full.
          ReplayError: if the server does not write them.
        """
        try:
            written = Path(self._client.checkpoint())
        except (IndexError, RuntimeError) as error:
            # Reverb's errors have no specific class; the state of the disk shows whether it was
            # full.
            if "No space left" in str(error) or shutil.disk_usage(folder).free < _FULL_DISK_BYTES:
                raise OSError(errno.ENOSPC, "No space left on device for the replay") from error
            raise ReplayError(f"the replay was not written: {error}") from error
        for path in written.iterdir():
            shutil.move(str(path), folder / path.name)
        written.rmdir()

    def capture(self) -> "ReplayPart":
        """Returns this object: the server writes its tables when `save` is called."""
        return self


class SameReplayPart:
    """Links the replay of an earlier checkpoint: instantaneous if the file system supports links.

    For a program that must end within seconds while its table takes longer to write. Training then
    continues from a replay that lacks the newest items; its rate limiter matches the items it has.
    """

    def __init__(self, earlier: Path):
        """Stores the folder.

        Args:
          earlier: the replay's folder in a checkpoint.
        """
        self._earlier = earlier

    def save(self, folder: Path) -> None:
        """Links the files, or copies them; they exist until both checkpoints are deleted."""
        for path in self._earlier.iterdir():
            link_or_copy(path, folder / path.name)

    def capture(self) -> "SameReplayPart":
        """Returns this object: the files do not change."""
        return self


def part_name(shard: int) -> str:
    """Returns the name that a replay server's tables have in a checkpoint.

    Args:
      shard: number of the server, from 0.
    """
    return f"replay-{shard}" if shard else "replay"


def make_server_checkpointer(run_dir: Path, shard: int) -> Callable[[], CheckpointerBase]:
    """Makes the constructor of a replay server's checkpointer.

    When the server starts, it loads the tables of the newest checkpoint that holds them intact. If
    there is no checkpoint, it loads those that were filled before the start of the run, if any.

    Args:
      run_dir: directory of the run.
      shard: number of the server, from 0.

    Returns:
      What `launchpad.ReverbNode` takes as `checkpoint_ctor`.
    """

    def make() -> CheckpointerBase:
        run = RunDirectory(run_dir)
        run.check_visible()
        scratch = replay_scratch(run_dir) / str(shard)
        shutil.rmtree(scratch, ignore_errors=True)  # Left by a server that was killed.
        scratch.mkdir(parents=True)
        found = Checkpointer(run.checkpoints).newest_intact(part_name(shard))
        stored = found.path / part_name(shard) if found else prefilled(run_dir) / str(shard)
        return DefaultCheckpointer(
            path=str(scratch),
            fallback_checkpoint_path=str(stored) if found or stored.exists() else None,
        )

    return make


def replay_scratch(run_dir: Path) -> Path:
    """Returns the folder where replay servers write before their files move to a checkpoint."""
    return RunDirectory(run_dir).checkpoints / ".replay"


def prefilled(run_dir: Path) -> Path:
    """Returns the folder of the tables with which a run starts, a folder for each replay server."""
    return run_dir / "prefill"


def read_tables(folder: Path) -> list[Any]:
    """Returns the settings of the tables in files, a `PriorityTableCheckpoint` each."""
    parse = checkpoint_pb2.PriorityTableCheckpoint.FromString
    return [parse(record) for record in _records(folder / TABLES_FILE)]


def read_items(folder: Path) -> list[Any]:
    """Returns what files hold of each item, a `PrioritizedItem`, the oldest first."""
    parse = schema_pb2.PrioritizedItem.FromString
    return [parse(record) for record in _records(folder / _ITEMS_FILE)]


def _records(path: Path) -> Iterator[bytes]:
    # Without tf.data, which would initialise the devices of a process in which a learner may run
    # later.
    data, start = zlib.decompress(path.read_bytes()), 0
    while start < len(data):
        (size,) = struct.unpack_from("<Q", data, start)
        yield data[start + _HEADER : start + _HEADER + size]
        start += _HEADER + size + _FOOTER
