"""Environments by name: flat float32 observations, actions in [-1, 1].

    environment = environments.make("cartpole:swingup", seed=1)
    timestep = environment.reset()

A name is a dm_control suite task (`domain:task`) or a factory (`package.module:function`, called
with `seed=`) that returns a `dm_env.Environment` or a `gymnasium.Env`. Importing this package loads
neither dm_control nor OpenGL nor TensorFlow.
"""

from typing import TYPE_CHECKING, Any

from environments.catalogue import adapt, make, names
from environments.errors import (
    EnvironmentNameError,
    EnvironmentSpecError,
    EnvironmentUsageError,
    RenderingUnavailableError,
)

if TYPE_CHECKING:
    from environments.flat import Environment

__all__ = [
    "Environment",
    "EnvironmentNameError",
    "EnvironmentSpecError",
    "EnvironmentUsageError",
    "RenderingUnavailableError",
    "adapt",
    "make",
    "names",
]


def __getattr__(name: str) -> Any:
    if name == "Environment":  # Here, because it imports NumPy and dm_env.
        from environments.flat import Environment

        return Environment
    raise AttributeError(f"module 'environments' has no attribute {name!r}")
