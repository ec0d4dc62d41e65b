"""The configuration of frames. Importing it loads neither NumPy nor OpenGL."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from environments.errors import EnvironmentSpecError

RENDER_MODES = ("auto", "fast", "exact")
_SMALLEST, _LARGEST = 8, 1024

# From PlaNet (Hafner et al. 2019, arXiv:1811.04551); most work on pixels has used them since.
_USUAL_ACTION_REPEATS = {
    "cartpole": 8,
    "ball_in_cup": 4,
    "cheetah": 4,
    "reacher": 4,
    "finger": 2,
    "walker": 2,
}
_OTHER_ACTION_REPEAT = 2


@dataclasses.dataclass(frozen=True)
class PixelConfig:
    """The configuration of frames, [height, width, 3] uint8, which are not stacked.

    Attributes:
      height: height of a frame in pixels, from 8 to 1024.
      width: width of a frame in pixels, from 8 to 1024.
      camera: index or name of a camera of the model; -1 is the free camera.
      action_repeat: number of environment steps for each action, at least 1. Rewards are summed.
        Default: 8 for cartpole, 4 for ball_in_cup, cheetah and reacher, 2 for all others.
      render: 'exact' renders as dm_control does. 'fast' renders without shadows, reflections and
        multisampling, and round shapes with fewer faces. 'auto' is 'fast' if OpenGL renders in
        software, and 'exact' otherwise.

    Raises:
      EnvironmentSpecError: if a field is out of its range.
    """

    height: int = 64
    width: int = 64
    camera: int | str = 0
    action_repeat: int | None = None
    render: str = "auto"

    def __post_init__(self) -> None:
        for name in ("height", "width", "camera", "action_repeat"):
            object.__setattr__(self, name, _plain(getattr(self, name)))
        for name in ("height", "width"):
            value = getattr(self, name)
            if not (_is_int(value) and _SMALLEST <= value <= _LARGEST):
                raise EnvironmentSpecError(
                    f"expected a pixel {name} from {_SMALLEST} to {_LARGEST}, got {value!r}"
                )
        repeat = self.action_repeat
        if repeat is not None and not (_is_int(repeat) and repeat >= 1):
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

    def repeats(self, name: str) -> int:
        """Returns the number of environment steps for each action.

        Args:
          name: name of the environment, on whose domain the default depends.
        """
        usual = _USUAL_ACTION_REPEATS.get(name.partition(":")[0], _OTHER_ACTION_REPEAT)
        return usual if self.action_repeat is None else self.action_repeat


def _plain(value: Any) -> Any:
    """Converts a NumPy integer, such as a computed size, to int; returns others unchanged."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
