"""The configuration of frames. Importing it loads neither NumPy nor OpenGL."""

from __future__ import annotations

import dataclasses
from typing import Any

from environments.errors import EnvironmentSpecError

RENDER_MODES = ("auto", "fast", "exact", "observed")
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
    """The configuration of frames, [height, width, channels] uint8, which are not stacked.

    Attributes:
      height: height of a frame in pixels, from 8 to 1024.
      width: width of a frame in pixels, from 8 to 1024.
      camera: index or name of a camera of the model; -1 is the free camera.
      action_repeat: number of environment steps for each action, at least 1. Rewards are summed.
        Default: 8 for cartpole, 4 for ball_in_cup, cheetah and reacher, 2 for all others.
      render: 'exact' renders as dm_control does. 'fast' renders without shadows, reflections and
        multisampling, and round shapes with fewer faces. 'auto' is 'fast' if OpenGL renders in
        software, and 'exact' otherwise. 'observed' renders nothing: the frame is the image among
        the environment's own observations, of its own size, grey or in colour.

    Raises:
      EnvironmentSpecError: if a field is out of its range.
    """

    height: int = 64
    width: int = 64
    camera: int | str = 0
    action_repeat: int | None = None
    render: str = "auto"

    def __post_init__(self) -> None:
        sizes = f"an integer from {_SMALLEST} to {_LARGEST}"
        for name, expected, is_right in (
            ("height", sizes, _is_from(_SMALLEST, self.height) and self.height <= _LARGEST),
            ("width", sizes, _is_from(_SMALLEST, self.width) and self.width <= _LARGEST),
            (
                "action_repeat",
                "an integer of at least 1",
                self.action_repeat is None or _is_from(1, self.action_repeat),
            ),
            (
                "camera",
                "a camera's name or an index of at least -1",
                bool(self.camera) if isinstance(self.camera, str) else _is_from(-1, self.camera),
            ),
            ("render", f"one of {', '.join(RENDER_MODES)}", self.render in RENDER_MODES),
        ):
            if not is_right:
                got = f"{getattr(self, name)!r} ({type(getattr(self, name)).__name__})"
                raise EnvironmentSpecError(f"{name} of frames: expected {expected}, got {got}")

    def repeats(self, name: str) -> int:
        """Returns the number of environment steps for each action.

        Args:
          name: name of the environment, on whose domain the default depends.
        """
        usual = _USUAL_ACTION_REPEATS.get(name.partition(":")[0], _OTHER_ACTION_REPEAT)
        return usual if self.action_repeat is None else self.action_repeat


def _is_from(lowest: int, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest
