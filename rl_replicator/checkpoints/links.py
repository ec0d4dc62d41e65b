"""Files that several checkpoints share."""

import os
import pathlib
import shutil


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
