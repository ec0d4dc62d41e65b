"""The replay table inside a run's checkpoint."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import reverb
from reverb.platform.checkpointers_lib import CheckpointerBase, DefaultCheckpointer

_FULL_DISK_BYTES = 1 << 20


class ReplayPart:
    """Lets the replay server write its tables, and moves them into the checkpoint.

    The server's folder and the checkpoints must be on one file system that the learner sees.
    """

    def __init__(self, client: reverb.Client):
        """Args:
        client: of the replay server.
        """
        self._client = client

    def save(self, folder: Path) -> None:
        """Writes the tables; inserting and sampling wait meanwhile."""
        try:
            written = Path(self._client.checkpoint())
        except (IndexError, RuntimeError) as error:
            # Reverb's errors are of no class of their own; the disk's state tells what it was.
            if "No space left" in str(error) or shutil.disk_usage(folder).free < _FULL_DISK_BYTES:
                raise OSError(errno.ENOSPC, "No space left on device for the replay") from error
            raise
        for path in written.iterdir():
            shutil.move(str(path), folder / path.name)
        written.rmdir()

    def restore(self, folder: Path) -> None:
        """Nothing: a Reverb server can only load a checkpoint as it starts."""


class SameReplayPart:
    """The replay of an earlier checkpoint once more: costs nothing, and is a little older.

    For a program that has seconds to end and a table that takes longer to write. Actors and learner
    go on from a replay that lacks the last rows; its limiter fits its own rows.
    """

    def __init__(self, earlier: Path):
        """Args:
        earlier: the replay's folder in a checkpoint.
        """
        self._earlier = earlier

    def save(self, folder: Path) -> None:
        """Links the files; they live until both checkpoints are gone."""
        for path in self._earlier.iterdir():
            os.link(path, folder / path.name)

    def restore(self, folder: Path) -> None:
        """Nothing, as for `ReplayPart`."""


def make_server_checkpointer(scratch: Path, restore: Path | None) -> Callable[[], CheckpointerBase]:
    """How the replay server saves and, as it starts, loads its tables.

    Args:
      scratch: folder where the server writes; must be empty.
      restore: the "replay" folder of a checkpoint, or None for empty tables.

    Returns:
      What `launchpad.ReverbNode` takes as `checkpoint_ctor`.
    """

    def make() -> CheckpointerBase:
        return DefaultCheckpointer(
            path=str(scratch), fallback_checkpoint_path=str(restore) if restore else None
        )

    return make
