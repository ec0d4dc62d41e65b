"""Environments by name: flat float32 observations or uint8 frames, actions in [-1, 1] or numbered.

    environment = environments.make("cartpole:swingup", seed=1)
    timestep = environment.reset()
    drawn = environments.make("cartpole:swingup", seed=1, pixels=environments.PixelConfig())

A name is a dm_control suite task (`domain:task`), `dm:manipulation/TASK`, `dm:locomotion/TASK`,
`gym:ID`, or a factory (`package.module:function`, called with `seed=`) that returns a
`dm_env.Environment` or a `gymnasium.Env`. Importing this package loads neither dm_control nor
OpenGL nor TensorFlow.
"""

from typing import TYPE_CHECKING, Any

from environments.catalogue import adapt, make, names
from environments.errors import (
    EnvironmentActionError,
    EnvironmentConstructionError,
    EnvironmentDataError,
    EnvironmentNameError,
    EnvironmentSpecError,
    EnvironmentUsageError,
    RenderingUnavailableError,
)
from environments.pixels.config import PixelConfig

if TYPE_CHECKING:
    from environments.flat import Environment
    from environments.pixels.environment import PixelEnvironment

__all__ = [
    "Environment",
    "EnvironmentActionError",
    "EnvironmentConstructionError",
    "EnvironmentDataError",
    "EnvironmentNameError",
    "EnvironmentSpecError",
    "EnvironmentUsageError",
    "PixelConfig",
    "PixelEnvironment",
    "RenderingUnavailableError",
    "adapt",
    "make",
    "names",
]


def __getattr__(name: str) -> Any:
    if name == "Environment":  # Imported lazily: loads NumPy and dm_env.
        from environments.flat import Environment

        return Environment
    if name == "PixelEnvironment":
        from environments.pixels.environment import PixelEnvironment

        return PixelEnvironment
    raise AttributeError(f"module 'environments' has no attribute {name!r}")
