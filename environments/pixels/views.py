"""The sources of an environment's frames."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from environments import flat
from environments.errors import EnvironmentSpecError
from environments.pixels import camera, rendering
from environments.pixels.config import PixelConfig


class View(Protocol):
    """Renders the current state of an environment.

    Attributes:
      render_mode: 'exact' or 'fast'; 'own' if the environment renders itself.
    """

    render_mode: str

    def frame(self) -> np.ndarray:
        """Renders the current state.

        Returns:
          A new array, [height, width, 3] uint8.

        Raises:
          EnvironmentDataError: if the environment returns anything else.
          RenderingUnavailableError: if OpenGL is unavailable on this machine.
        """

    def begin_episode(self) -> None:
        """Adapts to a new episode. Call it after each reset of the environment."""

    def close(self) -> None:
        """Frees the view's resources."""


class PhysicsView(View):
    """Renders a `dm_control.mujoco.Physics`."""

    def __init__(self, find_physics: Callable[[], Any], config: PixelConfig):
        """Checks that OpenGL works; the first frame loads it.

        Args:
          find_physics: returns the `dm_control.mujoco.Physics` to render. Called for each episode,
            because some tasks compile a new model for it, and `composer` then makes a new physics;
            a new physics may also share its predecessor's model.
          config: configuration of the frames.

        Raises:
          EnvironmentSpecError: if the model has no such camera.
          RenderingUnavailableError: if OpenGL is unavailable on this machine.
        """
        rendering.find()
        self.render_mode = rendering.resolve(config.render)
        self._find_physics, self._config = find_physics, config
        self._camera = self._make(find_physics())

    def _make(self, physics: Any) -> camera.Camera:
        config = self._config
        return camera.Camera(
            physics.model.ptr,
            physics.data.ptr,
            config.height,
            config.width,
            config.camera,
            camera.RENDER_SETTINGS[self.render_mode],
        )

    def frame(self) -> np.ndarray:
        return self._camera.frame()

    def begin_episode(self) -> None:
        physics = self._find_physics()
        if self._camera.model is physics.model.ptr:
            self._camera.data = physics.data.ptr
            self._camera.renew_terrain()
        else:
            self._camera.close()
            self._camera = self._make(physics)

    def close(self) -> None:
        self._camera.close()


class OwnView(View):
    """Renders an environment by its own method `render`."""

    render_mode = "own"

    def __init__(self, draw: flat.Render, config: PixelConfig):
        """Stores the method.

        Args:
          draw: the renderer of a `flat.Environment`.
          config: configuration of the frames.
        """
        self._draw, self._config = draw, config

    def frame(self) -> np.ndarray:
        config = self._config
        return self._draw(config.height, config.width, config.camera)

    def begin_episode(self) -> None:
        """Does nothing, because the environment renders its own state."""

    def close(self) -> None:
        """Does nothing, because the environment frees its own resources."""


def view_of(environment: flat.Environment, config: PixelConfig) -> View:
    """Makes the view of an environment.

    Args:
      environment: the environment.
      config: configuration of the frames.

    Returns:
      A `PhysicsView` if the environment has a physics and either no method `render` draws its
      frames or `config.render` is 'fast'; otherwise an `OwnView`.

    Raises:
      EnvironmentSpecError: if the environment cannot be rendered as configured.
      RenderingUnavailableError: if OpenGL is unavailable on this machine.
    """
    wrapped: Any = environment.wrapped
    redraws = environment.is_redrawn and config.render != "fast"
    if is_physics(getattr(wrapped, "physics", None)) and not redraws:
        return PhysicsView(lambda: wrapped.physics, config)
    draw = environment.renderer()
    if config.render == "fast":
        raise EnvironmentSpecError(
            f"expected render 'auto' or 'exact' for {type(environment.wrapped).__qualname__}, "
            "which renders itself, got 'fast'; leave render at 'auto'"
        )
    return OwnView(draw, config)


def is_physics(candidate: Any) -> bool:
    """Returns whether `candidate` is a dm_control physics, without importing dm_control."""
    engine = sys.modules.get("dm_control.mujoco.engine")
    return engine is not None and isinstance(candidate, engine.Physics)
