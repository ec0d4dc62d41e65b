"""Files that are replaced atomically, and folders that are created atomically."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

# File systems allow 255 bytes for a name.
_LONGEST_STEM = 40


def beside(path: Path, ending: str) -> Path:
    """Returns a random hidden path beside a file, which no other process chooses.

    Args:
      path: the file.
      ending: the ending of the new path.
    """
    return path.with_name(f".{path.stem[:_LONGEST_STEM]}-{secrets.token_hex(4)}{ending}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path at which to write a file, which replaces `path` at the end.

    After an error, such as that of a full disk, the old file is still there.

    Args:
      path: the file; its directory is created. For a symbolic link, its target is replaced.

    Raises:
      OSError: if the file cannot be written.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    new = beside(path, ".new")
    try:
        yield new
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


@contextlib.contextmanager
def making_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder, which is renamed to `path` at the end.

    After an error, nothing is left. The remains of a killed process are removed.

    Args:
      path: a folder that does not exist. One process makes it at a time.

    Raises:
      OSError: if it cannot be created.
    """
    new = path.with_name(f".{path.name}.partial")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        os.replace(new, path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
