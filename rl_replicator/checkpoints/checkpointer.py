"""Checkpoints that are complete or absent.

A checkpoint is a folder with one subfolder per part, and a manifest that is written last:

    directory/000007_step_12000/manifest.json
    directory/000007_step_12000/learner/...
    directory/000007_step_12000/replay/...

It is written under a temporary name and renamed once all bytes are on the disk. The manifest holds
the size and the checksum of every file, which are verified before anything is restored.

`save` returns when the checkpoint is complete. `begin_save` only copies the state, and leaves the
writing to a background thread, so that training continues.
"""

import contextlib
import errno
import functools
import logging
import operator
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from concurrent import futures
from types import TracebackType
from typing import Any, Protocol

from rl_replicator import errors
from rl_replicator.checkpoints import manifest, pending_work
from rl_replicator.checkpoints.manifest import CheckpointInfo
from rl_replicator.checkpoints.parts import TrackablePart

_LOG = logging.getLogger(__name__)

_TEMPORARY = ".saving-"
_DAMAGED = "damaged-"
_NAME = re.compile(r"(\d{6,})_step_(-?\d+)")


class Savable(Protocol):
    """State that can write itself to a folder.

    It may have a method `capture()`, which returns an object whose `save(folder)` writes the state
    as of the call of `capture`. `Checkpointer.begin_save` needs it to write in the background.
    """

    def save(self, folder: pathlib.Path) -> None:
        """Writes the state.

        Args:
          folder: empty folder; files may be moved or hard-linked into it.

        Raises:
          CheckpointError: if the state cannot be saved.
        """


class Part(Savable, Protocol):
    """State that can also read itself back.

    It may have a method `check(folder)`, which raises `CheckpointError` if the saved state does not
    fit. It is called after the checksums are verified and before any part is restored.
    """

    def restore(self, folder: pathlib.Path) -> None:
        """Reads the state.

        Args:
          folder: folder that `save` wrote.

        Raises:
          CheckpointError: if the saved state does not fit.
        """


class Checkpointer:
    """Saves to and restores from a directory. Only one process at a time may save.

    As a context manager, it waits at the end for a background save.
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 2):
        """Touches no file.

        Args:
          directory: directory of the checkpoints; the first `save` creates it.
          keep: number of newest checkpoints to keep, at least 1.

        Raises:
          ConfigError: if `keep` is below 1, or `directory` is a URL.
        """
        check_local(directory)
        self._directory = pathlib.Path(directory)
        self._keep = errors.check_count("keep", keep, "use 2")
        self._writing: futures.Future[CheckpointInfo] | None = None
        self._write_seconds = 0.0

    def __enter__(self) -> "Checkpointer":
        """Returns this object."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Waits for a save in the background; raises its error if nothing else was raised."""
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            _LOG.warning("the last checkpoint was not written: %s", failure)

    def save(self, step: int, parts: Mapping[str, Savable]) -> CheckpointInfo:
        """Saves a checkpoint, then removes the oldest ones beyond `keep`.

        A checkpoint holds whole steps. So this waits for the steps that run in the background and
        in other threads on the variables of the parts, even while those steps wait for data.
        `cancel` a step that may wait indefinitely. `restore` waits in the same way.

        Args:
          step: step after which the checkpoint is saved, any integer.
          parts: parts to save, by name.

        Returns:
          The description of the new checkpoint.

        Raises:
          CheckpointError: if the disk is full or cannot be written. All older checkpoints remain.
        """
        step = operator.index(step)  # JSON does not accept integers of NumPy.
        self.wait()
        with pending_work.paused(_variables(parts)):
            return self._write(step, parts)

    def begin_save(self, step: int, parts: Mapping[str, Savable]) -> None:
        """Copies the state of the parts, and saves the copy in the background.

        Waits for a save that is still running. If a part has no `capture`, its state cannot be
        copied, and the checkpoint is complete when this method returns.

        Args:
          step: see `save`.
          parts: see `save`.

        Raises:
          CheckpointError: if the previous save failed; see `save`.
        """
        step = operator.index(step)  # JSON does not accept integers of NumPy.
        captures = {name: getattr(part, "capture", None) for name, part in parts.items()}
        if None in captures.values():
            self.save(step, parts)
            return
        self.wait()
        with pending_work.paused(_variables(parts)):
            captured = {name: copy() for name, copy in captures.items() if copy is not None}
        # Each save has its own thread, which ends by itself; the interpreter waits for it at exit.
        executor = futures.ThreadPoolExecutor(1, "checkpoint")
        self._writing = executor.submit(self._write, step, captured)
        executor.shutdown(wait=False)

    @property
    def is_saving(self) -> bool:
        """Whether a save is running in the background."""
        return self._writing is not None and not self._writing.done()

    @property
    def write_seconds(self) -> float:
        """Seconds that the last complete save of this object took to write; 0 before the first."""
        return self._write_seconds

    def wait(self) -> CheckpointInfo | None:
        """Waits for the save in the background, if one was begun since the last call.

        Returns:
          The description of its checkpoint; None if there was none.

        Raises:
          CheckpointError: if the disk is full or cannot be written. All older checkpoints remain.
        """
        writing, self._writing = self._writing, None
        return None if writing is None else writing.result()

    def diverged(self, found: str, remedy: str) -> errors.Diverged:
        """Returns the error for numbers that are not finite, which must not replace checkpoints.

        Args:
          found: the first of them.
          remedy: what to do.
        """
        with contextlib.suppress(Exception):  # Of a save in the background.
            self.wait()
        latest = self.latest()
        saved = f"the newest checkpoint is of step {latest.step}" if latest else "no checkpoint yet"
        return errors.Diverged(f"expected finite numbers, got {found}; {remedy} ({saved})")

    def _write(self, step: int, parts: Mapping[str, Any]) -> CheckpointInfo:
        """Writes and publishes a checkpoint, then removes the oldest ones. See `save`."""
        started = time.monotonic()
        folders = self._folders()
        number = int(folders[-1].name.split("_")[0]) + 1 if folders else 1
        final = self._directory / f"{number:06d}_step_{step}"
        temporary = self._directory / f"{_TEMPORARY}{final.name}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            # A process that was killed while it saved leaves its temporary folder behind.
            for stale in self._directory.glob(_TEMPORARY + "*"):
                shutil.rmtree(stale)
            temporary.mkdir()
            for name, part in parts.items():
                folder = temporary / name
                folder.mkdir()
                part.save(folder)
            manifest.write(temporary, step, tuple(parts))
            temporary.rename(final)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise errors.CheckpointDiskError(
                f"cannot write the checkpoint of step {step} to {self._directory}: "
                f"{manifest.first_line(error)}; {errors.remedy(error)}; older checkpoints are "
                "intact"
            ) from error
        try:
            manifest.sync(self._directory)
        except OSError as error:
            _LOG.warning(
                "the checkpoint of step %d is written, but the disk has not confirmed it (%s); "
                "older ones are kept",
                step,
                manifest.first_line(error),
            )
            return manifest.read(final)[0]
        for folder in folders[: max(0, len(folders) + 1 - self._keep)]:
            shutil.rmtree(folder, ignore_errors=True)
        self._write_seconds = time.monotonic() - started
        return manifest.read(final)[0]

    @property
    def is_empty(self) -> bool:
        """Whether there is no checkpoint at all, not even a damaged one."""
        return not self._folders()

    def latest(self) -> CheckpointInfo | None:
        """Returns the description of the newest checkpoint; None if there is none.

        Raises:
          CheckpointError: if its manifest is damaged or cannot be read.
        """
        return self._of_newest(lambda folder: manifest.read(folder)[0])

    def set_aside_damaged(self) -> CheckpointInfo | None:
        """Verifies the newest checkpoint; renames it if it is damaged, and verifies the next one.

        The readers of a run may be several processes that restore different parts. Call this once,
        before they start, so that all of them find the same, intact checkpoint. The renamed folders
        ("damaged-...") are kept for inspection, and each is reported by a warning.

        Returns:
          The newest intact checkpoint; None if there is no checkpoint at all.

        Raises:
          CheckpointError: if no checkpoint is intact, if one has a newer format, or if one cannot
            be read (nothing is renamed then).
          OSError: if one cannot be renamed.
        """
        info, damaged = self._find_intact(())
        for path, damage in damaged:
            assert info is not None
            target = path.with_name(_DAMAGED + path.name)
            shutil.rmtree(target, ignore_errors=True)  # The name may have been used before.
            path.rename(target)
            _LOG.warning(
                "checkpoint of step %s is damaged (%s): using step %d, kept the damaged one as %s",
                path.name.rpartition("_")[2],
                damage.finding,
                info.step,
                target,
            )
        return info

    def newest_intact(self, *parts: str) -> CheckpointInfo | None:
        """Verifies the newest checkpoint, and older ones until one is intact; renames nothing.

        For a process of a run in progress that starts again.

        Args:
          *parts: names of the parts whose files are verified; all if none is given.

        Returns:
          The newest intact checkpoint; None if there is no checkpoint at all.

        Raises:
          CheckpointError: see `set_aside_damaged`.
        """
        info, damaged = self._find_intact(parts)
        for path, damage in damaged:
            assert info is not None
            _LOG.warning("%s is damaged (%s): using step %d", path, damage.finding, info.step)
        return info

    def _find_intact(
        self, parts: Collection[str]
    ) -> tuple[CheckpointInfo | None, list[tuple[pathlib.Path, manifest.DamageError]]]:
        """Returns the newest intact checkpoint, and the newer ones, which are damaged."""
        damaged: list[tuple[pathlib.Path, manifest.DamageError]] = []
        folders = self._folders()
        for folder in reversed(folders):
            try:
                info, files = manifest.read(folder)
                for file, (size, checksum) in files.items():
                    if not parts or file.partition("/")[0] in parts:
                        manifest.verify(info.path, file, size, checksum)
            except manifest.DamageError as error:
                if self._folders()[-1:] != folders[-1:]:  # A run in progress removes old ones.
                    return self._find_intact(parts)
                damaged.append((folder, error))
                continue
            return info, damaged
        if not damaged:
            return None, []
        raise errors.CheckpointError(
            f"expected an intact checkpoint in {self._directory}, found {len(damaged)} damaged "
            f"({damaged[0][1].finding}); restore that folder from a backup, or start a new run"
        )

    def restore(
        self, parts: Mapping[str, Part], checkpoint: CheckpointInfo | None = None
    ) -> CheckpointInfo:
        """Restores parts from a checkpoint, after verifying their files.

        Restore parts that belong together in one call: while a run is in progress, the next call
        may find a newer checkpoint. Waits for a save that this object has begun.

        Args:
          parts: parts to restore, by name: all parts of the checkpoint, or some.
          checkpoint: the checkpoint; None for the newest.

        Returns:
          The description of the checkpoint.

        Raises:
          CheckpointError: if there is no checkpoint; if a file is missing, truncated or changed, or
            cannot be read; if the format is newer than this program; if a part is missing or does
            not fit; or if the save that it waited for failed. Nothing is restored then, unless a
            part's `restore` raised the error.
        """
        self.wait()
        if checkpoint is not None:
            return _restore(parts, checkpoint.path)
        info = self._of_newest(functools.partial(_restore, parts))
        if info is None:
            raise errors.CheckpointError(
                f"expected a checkpoint in {self._directory}, found none; start without resuming"
            )
        return info

    def _of_newest(self, read: Callable[[pathlib.Path], CheckpointInfo]) -> CheckpointInfo | None:
        """Returns what `read` returns for the folder of the newest checkpoint; None without one.

        A run in progress removes old checkpoints, perhaps while one of them is being read: if the
        read fails and there is a newer checkpoint by then, the newer one is read instead.
        """
        folders = self._folders()
        while folders:
            try:
                return read(folders[-1])
            except Exception:
                before, folders = folders, self._folders()
                if folders[-1:] == before[-1:]:
                    raise
        return None

    def _folders(self) -> list[pathlib.Path]:
        """Returns the folders of all complete checkpoints, the oldest first."""
        if not self._directory.is_dir():
            return []
        found = [path for path in self._directory.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.name.split("_")[0]))


def _restore(parts: Mapping[str, Part], folder: pathlib.Path) -> CheckpointInfo:
    """Restores parts from a folder. See `Checkpointer.restore`."""
    info, files = manifest.read(folder)
    for name in parts:
        if name not in info.parts:
            raise errors.CheckpointError(
                f"expected part {name!r} in {info.path}, found {', '.join(info.parts)}; "
                "another program saved it; restore it with that program"
            )
    for file, (size, checksum) in files.items():
        if file.split("/")[0] in parts:
            manifest.verify(info.path, file, size, checksum)
    for name, part in parts.items():
        check = getattr(part, "check", None)
        if check is not None:
            check(info.path / name)
    with pending_work.paused(_variables(parts)):
        for name, part in parts.items():
            part.restore(info.path / name)
    return info


def _variables(parts: Mapping[str, Savable]) -> list[Any]:
    """Returns the variables of all parts that hold any."""
    holders = [part for part in parts.values() if isinstance(part, TrackablePart)]
    return [variable for part in holders for variable in part.variables().values()]


def check_local(path: str | os.PathLike) -> None:
    """Checks that a path is in the local file system, and not a URL such as gs://bucket/run.

    Python's file functions would create a local folder called "gs:" for a URL.

    Raises:
      ConfigError: if it is a URL, or longer than the file system allows.
    """
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise errors.ConfigError(
                f"expected a path that the file system allows, got {str(path)[:20]}... of "
                f"{len(str(path))} characters; choose a shorter one"
            ) from None
    # pathlib turns "gs://bucket" into "gs:/bucket".
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        raise errors.ConfigError(
            f"expected a path of a mounted file system, got {path}; mount that storage (for "
            "example with gcsfuse or s3fs) and pass the mount point"
        )
