"""Plays a policy for people to watch: in a window, or into a film."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import imageio.v2 as iio
import numpy as np

from rl_replicator.errors import DiskError, UsageError, cannot_write
from rl_replicator.runs import atomic_file

if TYPE_CHECKING:
    from acme import core

    from agents.task import Task

_HEIGHT = 240
_SCALE = 2  # Of the window.
_FRAMES_PER_SECOND = 30
# The film of an episode of 1000 environment steps takes about ten seconds.
_STEPS_PER_FRAME = 1000 // (10 * _FRAMES_PER_SECOND)
# Shows a frame, [H, W, 3] uint8; returns False to end the playing.
Show = Callable[[np.ndarray], bool | None]


@dataclasses.dataclass(frozen=True)
class Player:
    """A policy in an environment.

    Attributes:
      task: what is played.
      environment: the environment of the task.
      actor: chooses the actions.
      max_actions: number of actions after which an episode is cut off.
    """

    task: Task
    environment: Any
    actor: core.Actor
    max_actions: int

    def play(self, show: Show, episodes: int) -> Iterator[float]:
        """Plays episodes, until `show` returns False.

        Args:
          show: gets about 30 frames for 90 environment steps.
          episodes: number of episodes.

        Yields:
          The return of each episode that was shown to its end.
        """
        from agents.environment_loop import interact  # Imports TensorFlow.

        steps_per_frame = max(1, _STEPS_PER_FRAME // self.task.action_repeat)
        for _ in range(episodes):
            total = 0.0
            steps = itertools.islice(interact(self.environment, self.actor), self.max_actions + 1)
            for step, timestep in enumerate(steps):
                total += float(timestep.reward or 0.0)
                is_shown = step % steps_per_frame == 0
                if is_shown and show(self.environment.render(_HEIGHT)) is False:
                    return
                if timestep.last():
                    break
            yield total


@contextlib.contextmanager
def film(path: Path) -> Iterator[Show]:
    """Yields a function that adds a frame [H, W, 3] uint8 to a new film.

    The film replaces `path` once it is complete.

    Raises:
      DiskError: if it cannot be written completely, most likely because the disk is full.
      UsageError: if it cannot be created, or is named neither .mp4 nor .gif.
    """
    if path.suffix not in (".mp4", ".gif") or path.is_dir():
        found = f"the folder {path}" if path.is_dir() else path
        raise UsageError(f"--out: expected a file named .mp4 or .gif, got {found}")
    path = path.absolute()  # The environment may change the working directory.
    partial = atomic_file.beside(path, f".partial{path.suffix}")
    with _creating(path):  # Before the episode is played: these errors come early.
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
    # imageio would fork this process, which may hang in the handlers of gRPC's threads.
    os.environ.setdefault("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")
    writer: Any = None

    def add(frame: np.ndarray) -> None:
        nonlocal writer
        with _encoding():
            if writer is None:
                how: dict[str, Any] = {"fps": _FRAMES_PER_SECOND}
                if path.suffix == ".gif":
                    how = {"duration": 1000 / _FRAMES_PER_SECOND, "loop": 0}
                writer = iio.get_writer(partial, **how)
            writer.append_data(frame)

    try:
        yield add
        with _encoding():
            if writer is not None:
                writer.close()
            iio.get_reader(partial).get_data(0)  # The encoder may fail silently on a full disk.
        with _creating(path):
            os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            if writer is not None:
                writer.close()
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _creating(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(
            f"--out: cannot write to {path.parent}: {error}; choose another directory", error
        ) from None


@contextlib.contextmanager
def _encoding() -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError, IndexError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DiskError(f"cannot write the video: {reason}; is the disk full?") from error


class Window:
    """A window, which plays episodes at the speed of a film."""

    def __init__(self, title: str):
        """Opens the window.

        Args:
          title: its title.

        Raises:
          UsageError: if there is no display, or Python has no tkinter.
        """
        try:
            import tkinter  # Debian has it in a separate package.
        except ModuleNotFoundError:
            raise UsageError(
                "expected Python's tkinter for the window, found none; 'apt-get install "
                "python3-tk', or write a file with --out"
            ) from None
        try:
            self._root: Any = tkinter.Tk()
        except tkinter.TclError as error:
            raise UsageError(
                f"expected a display for the window, got: {error}; write a file with --out"
            ) from None
        self._new_image = tkinter.PhotoImage
        self._root.title(title)
        self._root.protocol("WM_DELETE_WINDOW", self.close)
        self._label = tkinter.Label(self._root)
        self._label.pack()
        self._is_open = True
        self._next = time.monotonic()

    def show(self, frame: np.ndarray) -> bool:
        """Shows a frame, [H, W, 3] uint8; returns whether the window is open."""
        if not self._is_open:
            return False
        height, width, _ = frame.shape
        data = b"P6 %d %d 255 " % (width, height) + np.ascontiguousarray(frame).tobytes()
        image = self._new_image(data=data, format="PPM").zoom(_SCALE)
        self._label.configure(image=image)
        self._image = image  # Tk itself keeps no reference.
        self._root.update()
        self._next = max(self._next + 1 / _FRAMES_PER_SECOND, time.monotonic())
        time.sleep(max(0.0, self._next - time.monotonic()))
        return self._is_open

    def close(self) -> None:
        """Closes the window."""
        if self._is_open:
            self._is_open = False
            self._root.destroy()


def has_display() -> bool:
    """Returns whether a window can be opened, according to the environment variables."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
