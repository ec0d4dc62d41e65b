"""The sources of an environment's frames."""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np

from environments import flat
from environments.errors import EnvironmentDataError, EnvironmentSpecError
from environments.pixels import camera, rendering
from environments.pixels.config import PixelConfig


class View(Protocol):
    """Draws the present state of one environment.

    Attributes:
      look: 'exact' or 'fast'; 'own' where the environment draws itself.
    """

    look: str

    def frame(self) -> np.ndarray:
        """Draws the present state: a fresh uint8 [height, width, 3] array."""

    def begin_episode(self) -> None:
        """Must be called after each reset of the environment."""

    def close(self) -> None:
        """Frees what the view holds."""


class PhysicsView:
    """Frames of a `dm_control.mujoco.Physics`."""

    def __init__(self, physics: Any, config: PixelConfig):
        """Checks that OpenGL works; the first frame loads it.

        Args:
          physics: a `dm_control.mujoco.Physics`.
          config: of the frames.

        Raises:
          EnvironmentSpecError: if the model has no such camera.
          RenderingUnavailableError: if no OpenGL works on this machine.
        """
        rendering.find()
        self.look = rendering.resolve(config.render)
        self._physics, self._config = physics, config
        self._camera = self._make()

    def _make(self) -> camera.Camera:
        config, physics = self._config, self._physics
        return camera.Camera(
            physics.model.ptr,
            physics.data.ptr,
            config.height,
            config.width,
            config.camera,
            camera.LOOKS[self.look],
        )

    def frame(self) -> np.ndarray:
        return self._camera.frame()

    def begin_episode(self) -> None:
        if self._camera.model is self._physics.model.ptr:
            self._camera.renew_terrain()
        else:  # Some tasks compile a new model for every episode.
            self._camera.close()
            self._camera = self._make()

    def close(self) -> None:
        self._camera.close()


class OwnView:
    """Frames of an environment that draws itself."""

    look = "own"

    def __init__(self, draw: flat.Render, config: PixelConfig, name: str):
        """Draws by the environment's own method.

        Args:
          draw: `(height, width, camera_id)` to a uint8 [height, width, 3] frame.
          config: of the frames.
          name: of the environment, for error messages.
        """
        self._draw, self._config, self._name = draw, config, name

    def frame(self) -> np.ndarray:
        """Draws the present state.

        Returns:
          A fresh uint8 [height, width, 3] array.

        Raises:
          EnvironmentDataError: if the environment returned anything else.
        """
        config = self._config
        frame = np.array(self._draw(config.height, config.width, config.camera))
        shape = (config.height, config.width, 3)
        if frame.dtype != np.uint8 or frame.shape != shape:
            raise EnvironmentDataError(
                f"{self._name}: frame: expected uint8 {list(shape)} from its render(), got "
                f"{frame.dtype} {list(frame.shape)}; scale it to 0..255 and to the size asked for"
            )
        return frame

    def begin_episode(self) -> None:
        """Does nothing: the environment draws its own state."""

    def close(self) -> None:
        """Does nothing: the environment closes itself."""


def view_of(environment: flat.Environment, config: PixelConfig) -> View:
    """Chooses how an environment is drawn.

    Args:
      environment: in the agents' form.
      config: of the frames.

    Returns:
      A view of its physics if it has one, otherwise one of its own `render`.

    Raises:
      EnvironmentSpecError: if it cannot be drawn as `config` asks.
      RenderingUnavailableError: if no OpenGL works on this machine.
    """
    physics = getattr(environment.wrapped, "physics", None)
    if is_physics(physics):
        return PhysicsView(physics, config)
    draw = environment.renderer()
    if config.render == "fast":
        raise EnvironmentSpecError(
            f"expected render 'auto' or 'exact' for {type(environment.wrapped).__qualname__}, "
            "which draws itself, got 'fast'"
        )
    return OwnView(draw, config, type(environment.wrapped).__qualname__)


def is_physics(candidate: Any) -> bool:
    """Returns whether `candidate` is a dm_control physics, without importing dm_control."""
    engine = sys.modules.get("dm_control.mujoco.engine")
    return engine is not None and isinstance(candidate, engine.Physics)
