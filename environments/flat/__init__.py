"""The interface through which agents use environments."""

from environments.flat.actions import (
    NO_LIMIT,
    ContinuousActions,
    DiscreteActions,
    MaskedArray,
    frame_of,
    make_actions,
    mask_size,
    numbers_of,
    random_policy,
)
from environments.flat.environment import (
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
    "ContinuousActions",
    "DiscreteActions",
    "Environment",
    "MaskedArray",
    "NumpyRandomness",
    "Randomness",
    "Render",
    "checked_frame",
    "find_randomness",
    "frame_of",
    "make_actions",
    "mask_size",
    "numbers_of",
    "own_render",
    "random_policy",
]
