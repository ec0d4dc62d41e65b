"""Films of episodes as files, complete or absent."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import imageio.v3 as iio
import numpy as np

from rl_replicator.errors import UsageError

HEIGHT, WIDTH = 240, 320
FRAMES_PER_SECOND = 30
# The film of an episode of 1000 environment steps takes about ten seconds.
STEPS_PER_FRAME = 1000 // (10 * FRAMES_PER_SECOND)


@contextlib.contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yields a new file beside `path`, which takes its place if all goes well.

    Raises:
      UsageError: if the file cannot be written, or is named neither .mp4 nor .gif.
    """
    if path.suffix not in (".mp4", ".gif"):
        raise UsageError(f"--output: expected a file named .mp4 or .gif, got {path}")
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()  # Before the episode is played, so that the user need not wait for this.
    except OSError as error:
        raise UsageError(
            f"--output: cannot write to {path.parent}: {error}; choose another directory"
        ) from None
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write(path: Path, frames: list[np.ndarray]) -> None:
    """Writes the frames and reads them back: an encoder may fail on a full disk in silence.

    Raises:
      UsageError: if the file is not complete.
    """
    try:
        if path.suffix == ".mp4":
            iio.imwrite(path, frames, fps=FRAMES_PER_SECOND)
            found = sum(1 for _ in iio.imiter(path, plugin="FFMPEG"))
        else:
            iio.imwrite(path, frames, duration=1000 / FRAMES_PER_SECOND, loop=0)
            found = path.stat().st_size
    except (OSError, ValueError, RuntimeError) as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"cannot write the video: {text}; is the disk full?") from error
    if not found:
        raise UsageError("cannot write the video: the file is empty; is the disk full?")
