"""Films of episodes as files, which are complete or absent."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import imageio.v2 as iio2
import imageio.v3 as iio
import numpy as np

from rl_replicator.errors import DiskError, UsageError, cannot_write
from rl_replicator.runs import whole_file

HEIGHT, WIDTH = 240, 320
FRAMES_PER_SECOND = 30
# The film of an episode of 1000 environment steps takes about ten seconds.
STEPS_PER_FRAME = 1000 // (10 * FRAMES_PER_SECOND)


@contextlib.contextmanager
def film(path: Path) -> Iterator[Callable[[np.ndarray], None]]:
    """Yields a function that adds a frame [H, W, 3] uint8 to a new film.

    The film replaces `path` once it is complete. Frames of an .mp4 are encoded as they come; a .gif
    keeps them until the end, because its encoder takes all at once.

    Raises:
      DiskError: if it cannot be written completely, most likely because the disk is full.
      UsageError: if it cannot be created, is a folder, or is named neither .mp4 nor .gif.
    """
    if path.suffix not in (".mp4", ".gif"):
        raise UsageError(f"--out: expected a file named .mp4 or .gif, got {path}")
    partial = whole_file.beside(path, f".partial{path.suffix}")
    with _file_errors(path):  # Before the episode is played: these errors come early.
        if path.is_dir():
            raise UsageError(f"--out: expected a file, got {path}, a folder; choose another")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
    encoder = _Mp4(partial) if path.suffix == ".mp4" else _Gif(partial)

    def add(frame: np.ndarray) -> None:
        with _disk_errors():
            encoder.add(frame)

    try:
        try:
            yield add
        except BaseException:
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                encoder.close()
            raise
        with _disk_errors():
            encoder.close()
            is_empty = not encoder.count()
        if is_empty:
            raise DiskError("cannot write the video: the file is empty; is the disk full?")
        with _file_errors(path):
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(
            f"--out: cannot write to {path.parent}: {error}; choose another directory", error
        ) from None


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: ffmpeg has failed.
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DiskError(f"cannot write the video: {text}; is the disk full?") from error


class _Mp4:
    """Encodes frames as they come."""

    def __init__(self, path: Path):
        self._path = path
        self._writer: Any = None

    def add(self, frame: np.ndarray) -> None:
        if self._writer is None:
            self._writer = iio2.get_writer(self._path, fps=FRAMES_PER_SECOND)
        self._writer.append_data(frame)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def count(self) -> int:
        """Reads the film back: the encoder may fail silently on a full disk."""
        return sum(1 for _ in iio.imiter(self._path, plugin="FFMPEG"))


class _Gif:
    """Encodes all frames at the end."""

    def __init__(self, path: Path):
        self._path = path
        self._frames: list[np.ndarray] = []

    def add(self, frame: np.ndarray) -> None:
        self._frames.append(frame)

    def close(self) -> None:
        if self._frames:
            iio.imwrite(self._path, self._frames, duration=1000 / FRAMES_PER_SECOND, loop=0)

    def count(self) -> int:
        return self._path.stat().st_size
