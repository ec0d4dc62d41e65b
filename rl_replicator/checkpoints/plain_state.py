"""State as text: JSON with NumPy arrays. Rejects what would not be read back equal."""

import base64
import io
import json
from typing import Any

import numpy as np

from rl_replicator import errors

_ARRAY = "ndarray"  # The only key of a JSON object that stands for an array.


def encode(state: Any) -> str:
    """Returns state as text.

    Args:
      state: JSON types with strings as keys, NumPy arrays of numbers, strings and times, and NumPy
        scalars, which are written as Python numbers.

    Raises:
      CheckpointError: if `decode` could not restore a part of it; names that part.
    """
    return json.dumps(_plain(state, "state"))


def decode(text: str) -> Any:
    """Returns the state that was encoded, with lists in place of tuples.

    Args:
      text: return value of `encode`.
    """
    return json.loads(text, object_hook=_with_array)


def _plain(value: Any, where: str) -> Any:
    """Returns a value as JSON types; raises `CheckpointError` if they cannot represent it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(one, f"{where}[{i}]") for i, one in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(one, f"{where}[{key!r}]") for key, one in value.items()}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if type(value) is np.ndarray and value.dtype.kind in "biufcmMSU":
        data = io.BytesIO()
        np.save(data, value, allow_pickle=False)
        return {_ARRAY: base64.b64encode(data.getvalue()).decode()}
    raise errors.CheckpointError(
        "expected JSON types with strings as keys, and NumPy arrays of numbers or strings, got "
        f"{type(value).__name__} at {where}; convert it to these"
    )


def _with_array(value: dict[str, Any]) -> Any:
    """Returns the array that a JSON object holds; the object itself if it holds none."""
    if value.keys() != {_ARRAY}:
        return value
    return np.load(io.BytesIO(base64.b64decode(value[_ARRAY])), allow_pickle=False)
