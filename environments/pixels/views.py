"""Where the frames of an environment come from."""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np

from environments import flat
from environments.errors import EnvironmentSpecError
from environments.pixels import camera, rendering
from environments.pixels.config import PixelConfig


class View(Protocol):
    """Draws the present state of one environment.

    Attributes:
      look: 'exact' or 'fast'; 'own' where the environment draws itself.
    """

    look: str

    def frame(self) -> np.ndarray:
        """A fresh uint8 [height, width, 3]."""

    def begin_episode(self) -> None:
        """To be called after each reset of the environment."""

    def close(self) -> None: ...


class PhysicsView:
    """Frames of a `dm_control.mujoco.Physics`."""

    def __init__(self, physics: Any, config: PixelConfig):
        """Looks at `physics`. OpenGL is looked for here, and loaded at the first frame.

        Raises:
          EnvironmentSpecError: if the model has no such camera.
          RenderingUnavailableError: if no OpenGL works here.
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

    def __init__(self, draw: flat.Render, config: PixelConfig):
        self._draw, self._config = draw, config

    def frame(self) -> np.ndarray:
        config = self._config
        return np.array(self._draw(config.height, config.width, config.camera), np.uint8)

    def begin_episode(self) -> None:
        """Nothing to do: the environment knows."""

    def close(self) -> None:
        """Nothing to do: the environment closes itself."""


def view_of(environment: flat.Environment, config: PixelConfig) -> View:
    """Finds out how `environment` can be drawn.

    Raises:
      EnvironmentSpecError: if it cannot, or not as `config` asks.
      RenderingUnavailableError: if no OpenGL works here.
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
    return OwnView(draw, config)


def is_physics(candidate: Any) -> bool:
    """Whether this is a dm_control physics. Where dm_control is not loaded, nothing is."""
    engine = sys.modules.get("dm_control.mujoco.engine")
    return engine is not None and isinstance(candidate, engine.Physics)
