"""Files that are replaced as a whole: an earlier one stays until its successor is complete."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

# File systems allow 255 bytes for a name.
_LONGEST_STEM = 40


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields where to write a file, which replaces `path` at the end.

    After an error, such as that of a full disk, what was there before is still there.

    Args:
      path: the file; its directory is created. If it is a link, the file that it leads to.

    Raises:
      OSError: if the file cannot be written.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.stem[:_LONGEST_STEM]}-{secrets.token_hex(4)}.new")
    try:
        yield new
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
