"""Checkpoints that are complete or absent.

A checkpoint is a folder with one subfolder per part, and a manifest that is written last:

    directory/000007_step_12000/manifest.json
    directory/000007_step_12000/learner/...
    directory/000007_step_12000/replay/...

It is written under a temporary name and renamed once all bytes are on the disk. The manifest holds
the size and the checksum of every file, which are verified before anything is restored.
"""

import dataclasses
import json
import logging
import os
import pathlib
import re
import shutil
import zlib
from collections.abc import Mapping
from typing import Any, Protocol

from rl_replicator import errors
from rl_replicator.checkpoints import pending_work

_LOG = logging.getLogger(__name__)

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_TEMPORARY = ".saving-"
_DAMAGED = "damaged-"
_NAME = re.compile(r"(\d{6,})_step_(\d+)")


class Part(Protocol):
    """State that can write itself to a folder and read itself back.

    A part may have a method `check(folder)` that raises `CheckpointError` if the saved state does
    not fit. It is called after the checksums are verified and before any part is restored.
    """

    def save(self, folder: pathlib.Path) -> None:
        """Writes the state.

        Args:
          folder: empty folder; files may be moved or hard-linked into it.

        Raises:
          CheckpointError: if the state cannot be saved.
        """

    def restore(self, folder: pathlib.Path) -> None:
        """Reads the state.

        Args:
          folder: folder that `save` wrote.

        Raises:
          CheckpointError: if the saved state does not fit.
        """


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """The description of a checkpoint, read from its manifest.

    Attributes:
      path: folder of the checkpoint.
      step: step after which it was saved.
      parts: names of its parts.
      num_bytes: size of all files.
    """

    path: pathlib.Path
    step: int
    parts: tuple[str, ...]
    num_bytes: int


class Checkpointer:
    """Saves to and restores from a directory. Only one process at a time may save."""

    def __init__(self, directory: str | os.PathLike, keep: int = 2):
        """Touches no file.

        Args:
          directory: directory of the checkpoints; the first `save` creates it.
          keep: number of newest checkpoints to keep, at least 1.

        Raises:
          ConfigError: if `keep` is below 1, or `directory` is a URL.
        """
        check_local(directory)
        if keep < 1:
            raise errors.ConfigError(f"expected keep to be at least 1, got {keep}; use 2")
        self._directory = pathlib.Path(directory)
        self._keep = keep

    def save(self, step: int, parts: Mapping[str, Part]) -> CheckpointInfo:
        """Saves a checkpoint, then removes the oldest ones beyond `keep`.

        Args:
          step: step after which the checkpoint is saved.
          parts: parts to save, by name.

        Returns:
          The description of the new checkpoint.

        Raises:
          CheckpointError: if the disk is full or cannot be written. All older checkpoints remain.
        """
        pending_work.wait()
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
            _write_manifest(temporary, step, tuple(parts))
            temporary.rename(final)
            _sync(self._directory)
        except BaseException as error:
            needed = max(_size(temporary), _size(folders[-1]) if folders else 0)
            shutil.rmtree(temporary, ignore_errors=True)
            if not _is_disk_error(error):
                raise
            raise errors.CheckpointError(
                f"cannot write the checkpoint of step {step} to {self._directory}: "
                f"{_first_line(error)} (at least {needed} bytes needed, {_free(self._directory)} "
                "free); free some space; older checkpoints are intact"
            ) from error
        for folder in folders[: max(0, len(folders) + 1 - self._keep)]:
            shutil.rmtree(folder, ignore_errors=True)
        return _read_manifest(final)[0]

    @property
    def is_empty(self) -> bool:
        """Whether there is no checkpoint at all, not even a damaged one."""
        return not self._folders()

    def latest(self) -> CheckpointInfo | None:
        """Returns the description of the newest checkpoint; None if there is none.

        Raises:
          CheckpointError: if its manifest is corrupt.
        """
        folders = self._folders()
        return _read_manifest(folders[-1])[0] if folders else None

    def set_aside_damaged(self) -> CheckpointInfo | None:
        """Verifies the newest checkpoint; renames it if it is damaged, and verifies the next one.

        The readers of a run may be several processes that restore different parts. Call this once,
        before they start, so that all of them find the same, intact checkpoint. The renamed folders
        ("damaged-...") are kept for inspection, and each is reported by a warning.

        Returns:
          The newest intact checkpoint; None if there is no checkpoint at all.

        Raises:
          CheckpointError: if no checkpoint is intact (none is renamed then), if one was written in
            a newer format, or if one cannot be renamed.
        """
        damaged: list[tuple[pathlib.Path, _DamageError]] = []
        for folder in reversed(self._folders()):
            try:
                info, files = _read_manifest(folder)
                for file, (size, checksum) in files.items():
                    _verify(info.path, file, size, checksum)
            except _DamageError as error:
                damaged.append((folder, error))
                continue
            for path, damage in damaged:
                self._rename_damaged(path, damage, info)
            return info
        if not damaged:
            return None
        first = damaged[0][1]
        raise errors.CheckpointError(
            f"expected an intact checkpoint in {self._directory}, found {len(damaged)} damaged "
            f"({first.finding}); restore that folder from a backup, or start a new run"
        )

    def _rename_damaged(
        self, path: pathlib.Path, error: "_DamageError", instead: CheckpointInfo
    ) -> None:
        target = path.with_name(_DAMAGED + path.name)
        try:
            path.rename(target)
        except OSError as failure:
            raise errors.CheckpointError(
                f"{error}; it cannot be renamed either: {_first_line(failure)}"
            ) from failure
        _LOG.warning(
            "checkpoint of step %s is damaged (%s): using step %d, kept the damaged one as %s",
            path.name.rpartition("_")[2],
            error.finding,
            instead.step,
            target,
        )

    def restore(self, parts: Mapping[str, Part]) -> CheckpointInfo:
        """Restores parts from the newest checkpoint, after verifying their files.

        Args:
          parts: parts to restore, by name: all parts of the checkpoint, or some.

        Returns:
          The description of the checkpoint.

        Raises:
          CheckpointError: if there is no checkpoint; if a file is missing, truncated or changed; if
            the format is newer than this program; or if a part is missing or does not fit. Nothing
            is restored then, unless a part's `restore` raised the error.
        """
        folders = self._folders()
        if not folders:
            raise errors.CheckpointError(
                f"expected a checkpoint in {self._directory}, found none; start without resuming"
            )
        info, files = _read_manifest(folders[-1])
        for name in parts:
            if name not in info.parts:
                raise errors.CheckpointError(
                    f"expected part {name!r} in {info.path}, found {', '.join(info.parts)}; "
                    "another program saved it; restore it with that program"
                )
        for file, (size, checksum) in files.items():
            if file.split("/")[0] in parts:
                _verify(info.path, file, size, checksum)
        for name, part in parts.items():
            check = getattr(part, "check", None)
            if check is not None:
                check(info.path / name)
        pending_work.wait()
        for name, part in parts.items():
            part.restore(info.path / name)
        return info

    def _folders(self) -> list[pathlib.Path]:
        """Returns the folders of all complete checkpoints, the oldest first."""
        if not self._directory.is_dir():
            return []
        found = [path for path in self._directory.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.name.split("_")[0]))


def check_local(path: str | os.PathLike) -> None:
    """Checks that a path is one of the local file system, not a URL such as gs://bucket/run.

    Python's file functions would make a local folder called "gs:" of it.

    Raises:
      ConfigError: if it is a URL.
    """
    # pathlib turns "gs://bucket" into "gs:/bucket".
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        raise errors.ConfigError(
            f"expected a path of a mounted file system, got {path}; mount that storage (for "
            "example with gcsfuse or s3fs) and pass the mount point"
        )


def _write_manifest(folder: pathlib.Path, step: int, parts: tuple[str, ...]) -> None:
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            files[name] = [path.stat().st_size, _checksum(path)]
        _sync(path)
    content = {"format": FORMAT_VERSION, "step": step, "parts": parts, "files": files}
    content["checksum"] = _content_checksum(content)
    manifest = folder / _MANIFEST
    manifest.write_text(json.dumps(content, indent=1), encoding="utf-8")
    _sync(manifest)
    _sync(folder)


def _read_manifest(folder: pathlib.Path) -> tuple[CheckpointInfo, dict[str, tuple[int, str]]]:
    path = folder / _MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["format"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise errors.CheckpointError(
                f"expected checkpoint format {FORMAT_VERSION} or older in {path}, got {version}; "
                "update this program, or remove that folder to use the previous checkpoint"
            )
        checksum = content.pop("checksum")
        if checksum != _content_checksum(content):
            raise ValueError("wrong checksum")
        files = {name: (size, crc) for name, (size, crc) in content["files"].items()}
        info = CheckpointInfo(
            folder, content["step"], tuple(content["parts"]), sum(s for s, _ in files.values())
        )
    except errors.CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _DamageError(path, "a readable manifest", _first_line(error)) from error
    return info, files


def _verify(folder: pathlib.Path, file: str, size: int, checksum: str) -> None:
    path = folder / file
    if not path.is_file():
        raise _DamageError(path, "a file", "none")
    found = path.stat().st_size
    if found != size:
        raise _DamageError(path, f"{size} bytes", f"{found}")
    if _checksum(path) != checksum:
        raise _DamageError(path, f"checksum {checksum}", "a different one")


class _DamageError(errors.CheckpointError):
    """A file of a checkpoint is missing, truncated or changed.

    Attributes:
      finding: what was expected and what was found.
    """

    def __init__(self, path: pathlib.Path, expected: str, found: str):
        """Composes the message."""
        self.finding = f"expected {expected} in {path}, found {found}"
        super().__init__(
            f"corrupt checkpoint: {self.finding}; remove the checkpoint's folder to use the "
            "previous checkpoint"
        )


def _checksum(path: pathlib.Path) -> str:
    # CRC-32 is fast enough for hundreds of megabytes of replay. It detects accidents, not attacks.
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return f"{crc:08x}"


def _content_checksum(content: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(folder: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _free(folder: pathlib.Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _is_disk_error(error: BaseException) -> bool:
    # TensorFlow's file errors are no OSErrors. Compared by name, so as not to import TensorFlow.
    return isinstance(error, OSError) or (
        type(error).__module__.startswith("tensorflow")
        and type(error).__name__
        in ("ResourceExhaustedError", "DataLossError", "PermissionDeniedError", "UnknownError")
    )


def _first_line(error: BaseException) -> str:
    # Removes the names of operations that TensorFlow adds to its messages.
    text = re.sub(r"\{\{.*?\}\} | \[Op:\w+\]", "", str(error))
    return (text.strip().splitlines() or [type(error).__name__])[0]
