"""What an agent that learns from pixels sees. Importing this file loads nothing heavy."""

from __future__ import annotations

import dataclasses
from typing import Any

from environments.errors import EnvironmentSpecError

RENDER_MODES = ("auto", "fast", "exact")
_SMALLEST, _LARGEST = 8, 1024


@dataclasses.dataclass(frozen=True)
class PixelConfig:
    """How frames are made. One frame is uint8 [height, width, 3]; stacking is up to its reader.

    Attributes:
      height: of a frame in pixels, from 8 to 1024.
      width: of a frame in pixels, from 8 to 1024.
      camera: index or name of a camera of the model; -1 is the free camera.
      action_repeat: steps of the environment for each action, at least 1. Rewards are summed.
      render: 'exact' draws the environment's own pixels, 'fast' leaves out shadows, reflections and
        multisampling and draws round shapes with fewer faces; 'auto' is 'fast' where OpenGL is
        drawn in software.

    Raises:
      EnvironmentSpecError: if a field is out of its range.
    """

    height: int = 64
    width: int = 64
    camera: int | str = 0
    action_repeat: int = 2
    render: str = "auto"

    def __post_init__(self) -> None:
        for name in ("height", "width"):
            value = getattr(self, name)
            if not (_is_int(value) and _SMALLEST <= value <= _LARGEST):
                raise EnvironmentSpecError(
                    f"expected a pixel {name} from {_SMALLEST} to {_LARGEST}, got {value!r}"
                )
        if not (_is_int(self.action_repeat) and self.action_repeat >= 1):
            raise EnvironmentSpecError(
                f"expected an action_repeat of at least 1, got {self.action_repeat!r}"
            )
        is_index = _is_int(self.camera) and int(self.camera) >= -1
        if not (is_index or (isinstance(self.camera, str) and self.camera)):
            raise EnvironmentSpecError(
                f"expected a camera's name or an index of at least -1, got {self.camera!r}"
            )
        if self.render not in RENDER_MODES:
            raise EnvironmentSpecError(
                f"expected render to be one of {', '.join(RENDER_MODES)}, got {self.render!r}"
            )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
