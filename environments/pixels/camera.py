"""Renders frames of a MuJoCo model.

A camera makes its scene and context once, whereas dm_control makes a new scene for every frame.

Functions import mujoco themselves, because it must be imported with OpenGL disabled; see
`environments.pixels.rendering`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from environments.errors import EnvironmentSpecError
from environments.pixels.gl_context import Context

_MAX_SHAPES = 10_000


@dataclasses.dataclass(frozen=True)
class RenderSettings:
    """Rendering settings that differ from the model's.

    Attributes:
      flags_off: rendering flags to disable, such as 'shadow' for `mjtRndFlag.mjRND_SHADOW`.
      quality: names and values of the model's `vis.quality`, used when the context is made.
    """

    flags_off: tuple[str, ...] = ()
    quality: tuple[tuple[str, int], ...] = ()


# Renders the same bytes as dm_control.
EXACT = RenderSettings()
# Keeps colours, textures and shapes. Sky and haze remain, because they cost little and make up most
# of a frame's colour. A sphere of 16 x 8 faces differs from one of 28 x 16 by a fifth of a grey
# level at 64 pixels, and takes half the time.
FAST = RenderSettings(
    flags_off=("shadow", "reflection"),
    quality=(("offsamples", 0), ("shadowsize", 0), ("numslices", 16), ("numstacks", 8)),
)
RENDER_SETTINGS = MappingProxyType({"exact": EXACT, "fast": FAST})


class Camera:
    """Renders the current state of a model at one size from one camera.

    Opens an OpenGL context of its own for the first frame. Any thread may render frames.

    Attributes:
      model: the `mujoco.MjModel`.
      data: the `mujoco.MjData` with the state. It may be replaced by another of the same model.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        height: int,
        width: int,
        camera: int | str,
        settings: RenderSettings,
    ):
        """Makes the scene.

        Args:
          model: a `mujoco.MjModel`.
          data: its `mujoco.MjData`.
          height: height of a frame in pixels.
          width: width of a frame in pixels.
          camera: index or name of a camera; -1, and 0 in a model without cameras, is the free one.
          settings: rendering settings, such as EXACT or FAST.

        Raises:
          EnvironmentSpecError: if the model has no such camera.
        """
        import mujoco

        self.model, self.data = model, data
        self._height, self._width = height, width
        self._settings = settings
        self._mujoco = mujoco
        self._camera = _mujoco_camera(model, camera)
        self._option = mujoco.MjvOption()
        # dm_control does not render the beams of rangefinders, which are measurements, not objects.
        self._option.flags[mujoco.mjtVisFlag.mjVIS_RANGEFINDER] = 0
        self._perturb = mujoco.MjvPerturb()
        self._scene = mujoco.MjvScene(model, _MAX_SHAPES)
        for name in settings.flags_off:
            self._scene.flags[getattr(mujoco.mjtRndFlag, f"mjRND_{name.upper()}")] = 0
        self._area = mujoco.MjrRect(0, 0, width, height)
        self._upside_down = np.empty((height, width, 3), np.uint8)
        self._terrain_is_new = False
        self._context: Context | None = None

    def renew_terrain(self) -> None:
        """Makes the next frame upload the height fields. Call it when they may have changed."""
        self._terrain_is_new = True

    def frame(self) -> np.ndarray:
        """Renders the current state.

        Returns:
          A new array, [height, width, 3] uint8.

        Raises:
          RenderingUnavailableError: if OpenGL is unavailable on this machine.
        """
        mujoco = self._mujoco
        if self._context is None:
            self._open()
        assert self._context is not None
        with self._context.current():
            if self._terrain_is_new:
                for terrain in range(self.model.nhfield):
                    mujoco.mjr_uploadHField(self.model, self._drawing, terrain)
                self._terrain_is_new = False
            mujoco.mjv_updateScene(
                self.model,
                self.data,
                self._option,
                self._perturb,
                self._camera,
                mujoco.mjtCatBit.mjCAT_ALL,
                self._scene,
            )
            mujoco.mjr_render(self._area, self._scene, self._drawing)
            mujoco.mjr_readPixels(self._upside_down, None, self._area, self._drawing)
            # OpenGL counts rows from the bottom.
            return np.ascontiguousarray(self._upside_down[::-1])

    def _open(self) -> None:
        """Opens the context. Changes the model's settings and restores them."""
        mujoco = self._mujoco
        context = Context(self._width, self._height)
        visual = self.model.vis
        wanted = [(visual.quality, name, value) for name, value in self._settings.quality]
        # The model asks for a buffer of its largest video; one of the frame's size suffices.
        wanted += [
            (visual.global_, "offwidth", self._width),
            (visual.global_, "offheight", self._height),
        ]
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in wanted]
        try:
            for owner, name, value in wanted:
                setattr(owner, name, value)
            with context.current():
                # The smallest font, because it loads fastest and no text is rendered.
                drawing = mujoco.MjrContext(self.model, mujoco.mjtFontScale.mjFONTSCALE_50)
                context.keep(drawing)
                mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, drawing)
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)
        self._context, self._drawing = context, drawing

    def close(self) -> None:
        """Destroys the context. A later frame opens a new one."""
        if self._context is not None:
            self._context.close()
            self._context = None


def _mujoco_camera(model: Any, camera: int | str) -> Any:
    import mujoco

    if isinstance(camera, str):
        index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
    else:
        index = -1 if camera == 0 and model.ncam == 0 else camera
    if (isinstance(camera, str) and index < 0) or not -1 <= index < model.ncam:
        names = ", ".join(repr(model.camera(i).name) for i in range(model.ncam)) or "none"
        raise EnvironmentSpecError(
            f"expected a camera of the model, -1 to {model.ncam - 1} (by name: {names}), got "
            f"{camera!r}"
        )
    made = mujoco.MjvCamera()
    made.fixedcamid = index
    if index == -1:
        made.type = mujoco.mjtCamera.mjCAMERA_FREE
        mujoco.mjv_defaultFreeCamera(model, made)
    else:
        made.type = mujoco.mjtCamera.mjCAMERA_FIXED
    return made


class VideoCamera:
    """Renders frames for videos, equal to dm_control's; called like `flat.Environment.render`.

    It does not use dm_control's contexts, because these belong to the thread that rendered first
    and fail if another thread frees them.
    """

    def __init__(self, find_physics: Callable[[], Any]):
        """Stores the function. The first frame opens the context.

        Args:
          find_physics: returns the `dm_control.mujoco.Physics` to render; called for each frame.
        """
        self._find_physics = find_physics
        self._camera: Camera | None = None
        self._key: tuple[Any, ...] = ()

    def __call__(self, height: int, width: int, camera_id: int | str) -> np.ndarray:
        """Renders the current state.

        Args:
          height: height of the frame in pixels.
          width: width of the frame in pixels.
          camera_id: index or name of a camera.

        Returns:
          A new array, [height, width, 3] uint8.

        Raises:
          EnvironmentSpecError: if the model has no such camera.
          RenderingUnavailableError: if OpenGL is unavailable on this machine.
        """
        physics = self._find_physics()
        key = (physics.model.ptr, height, width, camera_id)
        if self._camera is None or key != self._key:
            if self._camera is not None:
                self._camera.close()
            self._camera = Camera(
                physics.model.ptr, physics.data.ptr, height, width, camera_id, EXACT
            )
            self._key = key
        self._camera.data = physics.data.ptr  # A new physics may share its predecessor's model.
        self._camera.renew_terrain()
        return self._camera.frame()
