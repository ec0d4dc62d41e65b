"""The replay table inside a run's checkpoint."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import reverb
from reverb.platform.checkpointers_lib import CheckpointerBase, DefaultCheckpointer

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.runs.run_directory import RunDirectory

_FULL_DISK_BYTES = 1 << 20


class ReplayError(Exception):
    """The replay server did not write its tables: it has died, and may be starting again."""


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
        """Writes the tables; inserting and sampling wait meanwhile.

        Raises:
          OSError: the disk is full.
          ReplayError: the server does not do it.
        """
        try:
            written = Path(self._client.checkpoint())
        except (IndexError, RuntimeError) as error:
            # Reverb's errors are of no class of their own; the disk's state tells what it was.
            if "No space left" in str(error) or shutil.disk_usage(folder).free < _FULL_DISK_BYTES:
                raise OSError(errno.ENOSPC, "No space left on device for the replay") from error
            raise ReplayError(f"the replay was not written: {error}") from error
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


def make_server_checkpointer(run_dir: Path) -> Callable[[], CheckpointerBase]:
    """How the replay server saves and, as it starts, loads its tables: those of the newest
    checkpoint, or empty ones.

    Args:
      run_dir: of the run.

    Returns:
      What `launchpad.ReverbNode` takes as `checkpoint_ctor`.
    """

    def make() -> CheckpointerBase:
        run = RunDirectory(run_dir)
        run.check_visible()
        scratch = replay_scratch(run_dir)
        shutil.rmtree(scratch, ignore_errors=True)  # What a server wrote that was killed then.
        scratch.mkdir(parents=True)
        latest = Checkpointer(run.checkpoints).latest()
        return DefaultCheckpointer(
            path=str(scratch),
            fallback_checkpoint_path=str(latest.path / "replay") if latest else None,
        )

    return make


def replay_scratch(run_dir: Path) -> Path:
    """Where the replay server writes before its tables move into a checkpoint."""
    return RunDirectory(run_dir).checkpoints / ".replay"
