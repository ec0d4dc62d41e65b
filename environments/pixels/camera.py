"""Renders frames of a MuJoCo model.

A camera makes its scene and context once, whereas dm_control makes a new scene for every frame.
Functions import mujoco themselves, because it must be imported with OpenGL disabled; see
`environments.pixels.rendering`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
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
RENDER_SETTINGS = {"exact": EXACT, "fast": FAST}


class Camera:
    """Renders the current state of a physics, which may be another one in each episode.

    Any thread may render frames.
    """

    def __init__(self, find_physics: Callable[[], Any], settings: RenderSettings = EXACT):
        """Stores the function. The first frame opens an OpenGL context.

        Args:
          find_physics: returns the `dm_control.mujoco.Physics` to render; called for each frame,
            because some tasks compile a new model for each episode, and `composer` then makes a new
            physics; a new physics may also share its predecessor's model.
          settings: rendering settings, such as EXACT or FAST.
        """
        self._find_physics, self._settings = find_physics, settings
        self._drawing: _Drawing | None = None
        self._key: tuple[Any, ...] = ()

    def __call__(self, height: int, width: int, camera: int | str) -> np.ndarray:
        """Renders the current state.

        Args:
          height: height of the frame in pixels.
          width: width of the frame in pixels.
          camera: index or name of a camera; -1, and 0 in a model without cameras, is the free one.

        Returns:
          A new array, [height, width, 3] uint8.

        Raises:
          EnvironmentSpecError: if the model has no such camera.
          RenderingUnavailableError: if OpenGL is unavailable on this machine.
        """
        physics = self._find_physics()
        drawing = self._drawing_of(physics.model.ptr, height, width, camera)
        # As with dm_control, textures change when they are uploaded, which needs its contexts.
        has_contexts = getattr(physics, "_contexts", None) is not None
        return drawing.frame(physics.data.ptr, has_contexts)

    def check(self, height: int, width: int, camera: int | str) -> None:
        """Raises EnvironmentSpecError if the model has no such camera. Loads no OpenGL."""
        self._drawing_of(self._find_physics().model.ptr, height, width, camera)

    def _drawing_of(self, *key: Any) -> _Drawing:
        if self._drawing is None or self._key != key:
            self.close()
            self._drawing, self._key = _Drawing(self._settings, *key), key
        return self._drawing

    def close(self) -> None:
        """Destroys the OpenGL context. A later frame opens a new one."""
        if self._drawing is not None:
            self._drawing.close()
            self._drawing = None


class _Drawing:
    """A scene and a context for frames of one model and one size from one camera."""

    def __init__(
        self, settings: RenderSettings, model: Any, height: int, width: int, camera: int | str
    ):
        import mujoco

        self._model, self._settings = model, settings
        self._height, self._width = height, width
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
        self._uploaded: dict[str, np.ndarray] = {}
        self._context: Context | None = None

    def frame(self, data: Any, textures_may_change: bool) -> np.ndarray:
        """Renders the state in a `mujoco.MjData` of the model.

        Args:
          data: the state.
          textures_may_change: whether to look for changed textures, as for changed height fields.
        """
        mujoco, model = self._mujoco, self._model
        context = self._context or self._open()
        with context.current():
            self._upload("hfield_data", model.nhfield, mujoco.mjr_uploadHField)
            if textures_may_change:
                self._upload("tex_data", model.ntex, mujoco.mjr_uploadTexture)
            mujoco.mjv_updateScene(
                model,
                data,
                self._option,
                self._perturb,
                self._camera,
                mujoco.mjtCatBit.mjCAT_ALL,
                self._scene,
            )
            mujoco.mjr_render(self._area, self._scene, self._resources)
            mujoco.mjr_readPixels(self._upside_down, None, self._area, self._resources)
            # OpenGL counts rows from the bottom.
            return np.ascontiguousarray(self._upside_down[::-1])

    def _upload(self, name: str, count: int, upload: Callable[[Any, Any, int], None]) -> None:
        """Uploads all objects of a kind if their data have changed since they were uploaded."""
        data = getattr(self._model, name)
        if count and not np.array_equal(data, self._uploaded.get(name, ())):
            self._uploaded[name] = data.copy()
            for index in range(count):
                upload(self._model, self._resources, index)

    def _open(self) -> Context:
        """Opens the context. Changes the model's settings and restores them."""
        mujoco = self._mujoco
        context = Context(self, self._width, self._height)
        visual = self._model.vis
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
                resources = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_50)
                context.contents.append(resources)
                mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, resources)
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)
        self._context, self._resources = context, resources
        return context

    def close(self) -> None:
        """Destroys the context."""
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


def is_physics(candidate: Any) -> bool:
    """Returns whether `candidate` is a dm_control physics, without importing dm_control."""
    engine = sys.modules.get("dm_control.mujoco.engine")
    return engine is not None and isinstance(candidate, engine.Physics)
