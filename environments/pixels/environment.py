"""An environment whose observation is a rendered frame, alone or beside a part of its state."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from environments import flat
from environments.errors import EnvironmentSpecError
from environments.pixels import rendering
from environments.pixels.camera import RENDER_SETTINGS, Camera, is_physics
from environments.pixels.config import PixelConfig
from environments.wrappers import RepeatedActions

_SECONDS_TO_MEASURE = 0.3
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601.


class PixelEnvironment(dm_env.Environment):
    """A `dm_env.Environment` whose observation is one frame, uint8 [height, width, channels].

    With entries of the state or a mask of actions, it is `{"pixels": frame, "vector": [N]
    float32}`; a mask is the end of the vector (`flat.MaskedArray`).

    Actions, rewards and discounts are those of `wrappers.RepeatedActions`. Frames are not stacked.
    Every step returns a new array.

    Threads may step different environments at the same time, and one environment may be passed
    between threads.

    Attributes:
      seconds_rendering: seconds spent on frames so far.
    """

    def __init__(self, environment: flat.Environment, config: PixelConfig, action_repeat: int = 1):
        """Wraps an environment.

        Args:
          environment: a new environment.
          config: configuration of the frames.
          action_repeat: environment steps for each action, at least 1.

        Raises:
          EnvironmentSpecError: if the environment cannot be rendered as configured.
          RenderingUnavailableError: if OpenGL is unavailable on this machine.
        """
        self._environment = environment
        self._repeated = RepeatedActions(environment, action_repeat)
        self._is_grey = config.grey
        self._cameras: list[Camera] = []
        self._render_mode = "own"
        wrapped: Any = environment.wrapped
        redraws = environment.is_redrawn and config.render != "fast"
        size = config.height, config.width
        colours = 3
        if config.render == "observed":
            height, width, colours = environment.image_shape
            size = height, width
            if config.grey and colours not in (1, 3):
                raise EnvironmentSpecError(
                    f"expected an image in colour for --frame.grey, got one of {colours} channels; "
                    "leave the option out"
                )
            self._views: list[Callable[[], np.ndarray]] = [environment.image]
        elif is_physics(getattr(wrapped, "physics", None)) and not redraws:
            rendering.find()  # Raises if OpenGL is unavailable; the first frame loads it.
            self._render_mode = rendering.resolve(config.render)
            settings = RENDER_SETTINGS[self._render_mode]
            self._cameras = [Camera(lambda: wrapped.physics, settings) for _ in config.cameras]
            for camera, name in zip(self._cameras, config.cameras, strict=True):
                camera.check(*size, name)
            self._views = [
                functools.partial(camera, *size, name)
                for camera, name in zip(self._cameras, config.cameras, strict=True)
            ]
        else:
            draw = environment.renderer()
            self._views = [functools.partial(draw, *size, name) for name in config.cameras]
            if config.render == "fast":
                raise EnvironmentSpecError(
                    f"expected render 'auto' or 'exact' for {type(wrapped).__qualname__}, "
                    "which renders itself, got 'fast'; leave render at 'auto'"
                )
        channels = len(self._views) * (1 if config.grey else colours)
        shape = *size, channels
        self._frame_spec = specs.BoundedArray(shape, np.uint8, 0, 255, name="pixels")
        self._places = _places(environment, config.state)
        self.seconds_rendering = 0.0

    @property
    def wrapped(self) -> flat.Environment:
        """The wrapped environment, which observes its state."""
        return self._environment

    @property
    def render_mode(self) -> str:
        """'fast' or 'exact'; 'own' if the environment renders itself."""
        return self._render_mode

    @property
    def random_state(self) -> Any:
        """See `flat.Environment.random_state`."""
        return self._environment.random_state

    @random_state.setter
    def random_state(self, state: Any) -> None:
        self._environment.random_state = state

    def start(self) -> dict[str, float]:
        """See `flat.Environment.start`: numbers that the frames may not show."""
        return self._environment.start()

    def reset(self) -> dm_env.TimeStep:
        return self._drawn(self._environment.reset())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """Repeats an action; starts a new episode after the last step of one.

        Args:
          action: see `flat.Environment.step`.
        """
        return self._drawn(self._repeated.step(action))

    def frame(self) -> np.ndarray:
        """Renders the current state. Call `reset` first.

        Returns:
          A new array, [height, width, channels] uint8.
        """
        started = time.perf_counter()
        try:
            frames = [view() for view in self._views]
            if self._is_grey:
                frames = [_grey(frame) for frame in frames]
            return frames[0] if len(frames) == 1 else np.concatenate(frames, axis=-1)
        finally:
            self.seconds_rendering += time.perf_counter() - started

    def describe_rendering(self) -> str:
        """Resets the environment; returns one line: renderer, mode, size and frames per second."""
        drawn_by = "by the environment itself"
        if self._render_mode != "own":
            renderer = rendering.find()
            advice = rendering.advice(renderer)
            drawn_by = f"{renderer.kind.upper()}, {renderer.name}, {self._render_mode}"
            drawn_by += f" ({advice})" if advice else ""
        height, width, _ = self._frame_spec.shape
        return f"rendering: {drawn_by}, {height}x{width}: {self.frames_per_second():.0f} frames/s"

    def frames_per_second(self) -> float:
        """Resets the environment, and measures how often per second its first state is rendered."""
        self.reset()  # The first frame compiles shaders.
        count, start = 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < _SECONDS_TO_MEASURE or not count:
            self.frame()
            count += 1
        return count / passed

    def _drawn(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        observation: Any = self.frame()
        if self._places.size:
            observation = {"pixels": observation, "vector": timestep.observation[self._places]}
        return timestep._replace(observation=observation)

    def observation_spec(self) -> Any:
        if not self._places.size:
            return self._frame_spec
        size, masked = self._places.size, flat.mask_size(self._environment.observation_spec())
        vector = specs.Array((size,), np.float32, name="vector")
        return {
            "pixels": self._frame_spec,
            "vector": flat.MaskedArray(size, masked) if masked else vector,
        }

    def action_spec(self) -> specs.BoundedArray:
        return self._environment.action_spec()

    def reward_spec(self) -> specs.Array:
        return self._repeated.reward_spec()

    def discount_spec(self) -> specs.BoundedArray:
        """Returns the spec of the discount, a float32 scalar in [0, 1]."""
        return self._environment.discount_spec()

    def render(
        self, height: int = 240, width: int | None = None, camera_id: int | str = 0
    ) -> np.ndarray:
        """Renders a frame for a video, always 'exact'; see `flat.Environment.render`."""
        return self._environment.render(height, width, camera_id)

    def close(self) -> None:
        for camera in self._cameras:
            camera.close()
        self._environment.close()


def _places(environment: flat.Environment, names: tuple[str, ...]) -> np.ndarray:
    """Returns the places of entries, and of a mask of actions, in the flat observation.

    Raises:
      EnvironmentSpecError: if it has no such entry.
    """
    fields = dict(environment.observation_fields)
    spec = environment.observation_spec()
    mask = range(spec.shape[0] - flat.mask_size(spec), spec.shape[0])
    if mask:
        fields.popitem()  # It comes last, whatever is chosen.
    chosen = tuple(fields) if names == ("all",) else names
    if names and not (chosen and set(chosen) <= set(fields)):
        raise EnvironmentSpecError(
            f"expected entries of the observation for --frame.state, all or some of "
            f"{', '.join(fields) or 'none'}, got {' '.join(names)}"
        )
    return np.array([*(i for name in chosen for i in np.r_[fields[name]]), *mask], int)


def _grey(frame: np.ndarray) -> np.ndarray:
    """Returns the luma of a frame of red, green and blue, [H, W, 1] uint8."""
    if frame.shape[-1] == 1:
        return frame
    return np.rint(frame @ _LUMA).astype(np.uint8)[..., np.newaxis]
