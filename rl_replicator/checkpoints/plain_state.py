"""State as text: JSON with NumPy arrays. Rejects what would not be read back equal."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_replicator import errors

_ARRAY_KEYS = frozenset({"ndarray", "dtype", "shape"})
_BFLOAT16 = "bfloat16"


def encode(state: Any) -> str:
    """Returns state as text.

    Args:
      state: JSON types with strings as keys, NumPy arrays of numbers, strings and times, and NumPy
        scalars, which are written as Python numbers.

    Raises:
      CheckpointError: if `decode` could not restore a part of it; names that part.
    """
    try:
        return json.dumps(_plain(state, "state"))
    except RecursionError:
        raise errors.CheckpointError(
            "expected state of a few levels, got one that contains itself or has hundreds; save "
            "its parts"
        ) from None


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
    if isinstance(value, dict):
        return _plain_dict(value, where)
    if isinstance(value, np.ndarray):
        return _plain_array(value, where)
    if isinstance(value, np.generic):
        # np.str_ and np.float64 are subclasses of Python's types, and were returned above. Checks
        # kinds rather than classes, because np.timedelta64 is a subclass of np.signedinteger.
        if value.dtype.kind in "biu" or value.dtype.name in ("float16", "float32", _BFLOAT16):
            return value.item()
        raise _refusal(f"a NumPy scalar of {value.dtype}", where, "convert it to a Python number")
    raise _refusal(type(value).__name__, where, "convert it to these")


def _plain_dict(value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise _refusal(
                f"the key {key!r} of a dict", where, "use strings as keys, or a list of pairs"
            )
    if value.keys() == _ARRAY_KEYS:
        raise _refusal(
            "a dict with the keys of an encoded array (ndarray, dtype, shape)",
            where,
            "rename one of them",
        )
    return {key: _plain(one, f"{where}[{key!r}]") for key, one in value.items()}


def _plain_array(value: np.ndarray, where: str) -> dict[str, Any]:
    if type(value) is not np.ndarray:
        raise _refusal(type(value).__name__, where, "convert it with np.array, and a mask as well")
    dtype = value.dtype.name if value.dtype.name == _BFLOAT16 else value.dtype.str
    # The `str` of a structured type, or of a type that NumPy lacks, denotes raw bytes.
    is_known = dtype == _BFLOAT16 or np.dtype(dtype) == value.dtype
    if not is_known or value.dtype.hasobject or value.dtype.itemsize == 0:
        raise _refusal(
            f"an array of {value.dtype}", where, "save arrays of numbers, a list, or a dict of them"
        )
    data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    return {"ndarray": data, "dtype": dtype, "shape": list(value.shape)}


def _with_array(value: dict[str, Any]) -> Any:
    """Returns the array that a JSON object holds; the object itself if it holds none."""
    if value.keys() != _ARRAY_KEYS:
        return value
    dtype: Any = value["dtype"]
    if dtype == _BFLOAT16:
        import tensorflow as tf

        dtype = tf.bfloat16.as_numpy_dtype
    data = np.frombuffer(base64.b64decode(value["ndarray"]), np.dtype(dtype))
    return data.reshape(value["shape"]).copy()


def _refusal(found: str, where: str, remedy: str) -> errors.CheckpointError:
    return errors.CheckpointError(
        f"expected JSON types and NumPy arrays that can be read back, got {found} at {where}; "
        f"{remedy}"
    )
