"""The interface through which agents use environments: float32 vectors in and out."""

from environments.flat.environment import (
    NO_LIMIT,
    Environment,
    NumpyRandomness,
    Randomness,
    Render,
    checked_frame,
    find_randomness,
    own_render,
)

__all__ = [
    "NO_LIMIT",
    "Environment",
    "NumpyRandomness",
    "Randomness",
    "Render",
    "checked_frame",
    "find_randomness",
    "own_render",
]
