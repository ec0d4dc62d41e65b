"""The state that an exploration keeps between actions, as a part of checkpoints."""

import itertools
from typing import Any

import numpy as np

from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import CheckpointError

# Types that a checkpoint preserves.
_TYPES = (dict, list, np.ndarray, str, bool, int, float, type(None))


def part(memory: dict[str, Any]) -> JsonPart:
    """Returns the part that saves `ExplorationContext.memory`, and restores it in place.

    Args:
      memory: the memory.
    """
    return JsonPart(
        lambda: {"memory": _checked(memory)},
        lambda saved: _put_back(memory, saved["memory"], set()),
    )


def _checked(memory: Any, where: str = "memory") -> Any:
    """Returns the memory of an exploration, if a checkpoint preserves the types of its values.

    Raises:
      CheckpointError: for other types, such as NumPy scalars, with which an exploration computes in
        another precision than with Python's numbers.
    """
    if type(memory) not in _TYPES:
        raise CheckpointError(
            f"expected arrays, Python's numbers and texts, None, lists and dicts in the memory of "
            f"an exploration, got {type(memory).__name__} at {where}; convert it with float, int, "
            "bool, str, list, dict or np.array"
        )
    if isinstance(memory, dict):
        for name, value in memory.items():
            _checked(value, f"{where}[{name!r}]")
    elif isinstance(memory, list):
        for i, value in enumerate(memory):
            _checked(value, f"{where}[{i}]")
    return memory


def _put_back(held: Any, saved: Any, filled: set[int]) -> Any:
    """Returns the saved value, copied into the held arrays, lists and dicts where it fits.

    An exploration may keep its own references to these.

    Args:
      held: the current value at a place in the memory.
      saved: the saved value at this place.
      filled: identities of the objects filled so far. An object that is held in several places at
        the start, as in `[zeros] * 3`, may have been replaced in some of them, so it is filled only
        once.
    """
    if id(held) in filled:
        return saved
    filled.add(id(held))
    if isinstance(held, dict) and isinstance(saved, dict):
        restored = {name: _put_back(held.get(name), one, filled) for name, one in saved.items()}
        held.clear()
        held.update(restored)
    elif isinstance(held, list) and isinstance(saved, list):
        pairs = itertools.zip_longest(held[: len(saved)], saved)
        held[:] = [_put_back(old, one, filled) for old, one in pairs]
    elif (
        isinstance(held, np.ndarray)
        and isinstance(saved, np.ndarray)
        and (held.shape, held.dtype) == (saved.shape, saved.dtype)
        and held.flags.writeable
    ):
        held[...] = saved
    else:
        return saved
    return held
