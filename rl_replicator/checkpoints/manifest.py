"""The files of a checkpoint, and its manifest with their sizes and checksums."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from rl_replicator import errors

FORMAT_VERSION = 1
NAME = "manifest.json"


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


def write(folder: pathlib.Path, step: int, parts: tuple[str, ...]) -> None:
    """Writes the manifest of a folder, and waits until all of its files are on the disk.

    Args:
      folder: folder of the checkpoint; holds the files of its parts.
      step: step after which it is saved.
      parts: names of its parts.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            files[name] = [path.stat().st_size, _checksum(path)]
        sync(path)
    content = {"format": FORMAT_VERSION, "step": step, "parts": parts, "files": files}
    content["checksum"] = _content_checksum(content)
    manifest = folder / NAME
    manifest.write_text(json.dumps(content, indent=1), encoding="utf-8")
    sync(manifest)
    sync(folder)


def read(folder: pathlib.Path) -> tuple[CheckpointInfo, dict[str, tuple[int, str]]]:
    """Reads the manifest of a checkpoint.

    Args:
      folder: folder of the checkpoint.

    Returns:
      The description of the checkpoint, and size and checksum of its files, by relative path.

    Raises:
      CheckpointError: if its format is newer than this program's, or it cannot be read.
      DamageError: if the manifest is missing or damaged.
    """
    path = folder / NAME
    with _reading(path, "a readable manifest"):
        text = path.read_bytes()
    try:
        content = json.loads(text.decode())
        version = content["format"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise errors.CheckpointError(
                f"expected checkpoint format {FORMAT_VERSION} or older in {path}, got {version}; "
                "update this program, or remove that folder to use an older one, if there is one"
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
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamageError(path, "a readable manifest", first_line(error)) from error
    return info, files


def verify(folder: pathlib.Path, file: str, size: int, checksum: str) -> None:
    """Compares a file with the manifest.

    Args:
      folder: folder of the checkpoint.
      file: path of the file, relative to `folder`.
      size: its size in bytes.
      checksum: its checksum.

    Raises:
      CheckpointError: if it cannot be read.
      DamageError: if the file is missing or differs.
    """
    path = folder / file
    with _reading(path, "a file"):
        if not path.is_file():
            raise DamageError(path, "a file", "none")
        found = path.stat().st_size
        if found != size:
            raise DamageError(path, f"{size} bytes", f"{found}")
        if _checksum(path) != checksum:
            raise DamageError(path, f"checksum {checksum}", "a different one")


@contextlib.contextmanager
def _reading(path: pathlib.Path, expected: str) -> Iterator[None]:
    """Raises `DamageError` for a missing file, `CheckpointError` for one that may be intact."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise DamageError(path, expected, first_line(error)) from error
    except OSError as error:
        raise errors.CheckpointError(
            f"cannot read {path}: {error.strerror or first_line(error)}; correct its permissions, "
            "or try again, or remove the checkpoint's folder to use an older one, if there is one"
        ) from error


class DamageError(errors.CheckpointError):
    """A file of a checkpoint is missing, truncated or changed.

    Attributes:
      finding: what was expected and what was found.
    """

    def __init__(self, path: pathlib.Path, expected: str, found: str):
        """Composes the message."""
        self.finding = f"expected {expected} in {path}, found {found}"
        super().__init__(
            f"corrupt checkpoint: {self.finding}; remove the checkpoint's folder to use an "
            "older one, if there is one"
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


def sync(path: pathlib.Path) -> None:
    """Waits until a file or the entries of a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_or_copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """Links or copies a file of a checkpoint; files of checkpoints never change.

    A link takes neither time nor space. File systems without hard links, such as exFAT and many
    mounts of cloud storage, get a copy.

    Args:
      source: the file of the checkpoint.
      target: the new file.

    Raises:
      FileExistsError: if there is a file: it may be linked to that of another checkpoint.
      OSError: if it cannot be copied either.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its type if there is none."""
    # Removes the names of operations that TensorFlow adds to its messages.
    text = re.sub(r"\{\{.*?\}\} | \[Op:\w+\]", "", str(error))
    return (text.strip().splitlines() or [type(error).__name__])[0]
