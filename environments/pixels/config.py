"""The configuration of frames. Importing it loads neither NumPy nor OpenGL."""

from __future__ import annotations

import dataclasses
from typing import Any

from environments.errors import EnvironmentSpecError

RENDER_MODES = ("auto", "fast", "exact", "observed")
_SMALLEST, _LARGEST = 8, 1024


@dataclasses.dataclass(frozen=True)
class PixelConfig:
    """The configuration of frames, [height, width, channels] uint8, which are not stacked.

    Each camera has three channels, red, green and blue, or one of grey.

    Attributes:
      height: height of a frame in pixels, from 8 to 1024.
      width: width of a frame in pixels, from 8 to 1024.
      cameras: indices or names of cameras of the model; -1 is the free camera.
      grey: whether frames are grey, by the luma of ITU-R BT.601.
      render: 'exact' renders as dm_control does. 'fast' renders without shadows, reflections and
        multisampling, and round shapes with fewer faces. 'auto' is 'fast' if OpenGL renders in
        software, and 'exact' otherwise. 'observed' renders nothing: the frame is the image among
        the environment's own observations, of its own size, grey or in colour.
      state: names of entries of the environment's own observation to observe beside the frames, in
        this order; 'all' for all but images.

    Raises:
      EnvironmentSpecError: if a field is out of its range.
    """

    height: int = 64
    width: int = 64
    cameras: tuple[int | str, ...] = (0,)
    grey: bool = False
    render: str = "auto"
    state: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.render == "observed":
            for name in ("height", "width", "cameras"):
                if getattr(self, name) != getattr(PixelConfig, name):
                    raise EnvironmentSpecError(
                        f"{name} of frames: expected none with render 'observed', whose frames are "
                        f"images of their own size, got {getattr(self, name)!r}"
                    )
        sizes = f"an integer from {_SMALLEST} to {_LARGEST}"
        for name, expected, is_right in (
            ("height", sizes, _is_from(_SMALLEST, self.height) and self.height <= _LARGEST),
            ("width", sizes, _is_from(_SMALLEST, self.width) and self.width <= _LARGEST),
            (
                "cameras",
                "names of cameras or indices of at least -1, at least one of them",
                bool(self.cameras) and all(map(_is_camera, self.cameras)),
            ),
            ("render", f"one of {', '.join(RENDER_MODES)}", self.render in RENDER_MODES),
        ):
            if not is_right:
                got = f"{getattr(self, name)!r} ({type(getattr(self, name)).__name__})"
                raise EnvironmentSpecError(f"{name} of frames: expected {expected}, got {got}")


def _is_camera(value: Any) -> bool:
    return bool(value) if isinstance(value, str) else _is_from(-1, value)


def _is_from(lowest: int, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest
