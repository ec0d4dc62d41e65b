"""Environments by name: flat float32 observations, actions in [-1, 1].

    environment = environments.make("cartpole:swingup", seed=1)
    timestep = environment.reset()

A name is a dm_control suite task (`domain:task`) or a factory (`package.module:function`, called
with `seed=`) that returns a `dm_env.Environment` or a `gymnasium.Env`. Importing this package loads
neither dm_control nor OpenGL nor TensorFlow.
"""

from environments.catalogue import adapt, make, names
from environments.errors import (
    EnvironmentNameError,
    EnvironmentSpecError,
    EnvironmentUsageError,
    RenderingUnavailableError,
)

__all__ = [
    "EnvironmentNameError",
    "EnvironmentSpecError",
    "EnvironmentUsageError",
    "RenderingUnavailableError",
    "adapt",
    "make",
    "names",
]
