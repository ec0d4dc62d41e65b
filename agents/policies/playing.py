"""Plays a policy for people to watch: in a window, or into a file."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from acme import core

from agents.environment_loop import interact
from agents.policies import video_file
from agents.task import Task
from rl_replicator.errors import UsageError

_SCALE = 2
# Shows a frame, [H, W, 3] uint8; returns False to end the playing.
Show = Callable[[np.ndarray], bool | None]


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
        self._next = max(self._next + 1 / video_file.FRAMES_PER_SECOND, time.monotonic())
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


def play(
    environment: Any,
    actor: core.Actor,
    task: Task,
    max_actions: int,
    show: Show,
    episodes: int,
) -> Iterator[float]:
    """Plays episodes, until `show` returns False.

    Args:
      environment: the environment of the task.
      actor: chooses the actions.
      task: what is played.
      max_actions: number of actions after which an episode is cut off.
      show: gets about 30 frames for 90 environment steps.
      episodes: number of episodes.

    Yields:
      The return of each episode that was shown to its end.
    """
    steps_per_frame = max(1, video_file.STEPS_PER_FRAME // task.action_repeat)
    for _ in range(episodes):
        total = 0.0
        steps = itertools.islice(interact(environment, actor), max_actions + 1)
        for step, timestep in enumerate(steps):
            total += float(timestep.reward or 0.0)
            if step % steps_per_frame == 0:
                frame = environment.render(video_file.HEIGHT, video_file.WIDTH)
                if show(frame) is False:
                    return
            if timestep.last():
                break
        yield total
