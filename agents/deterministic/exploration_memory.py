"""What an exploration keeps from one action to the next, as a part of checkpoints."""

import itertools
from typing import Any

import numpy as np

from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import CheckpointError

# What a checkpoint gives back as the same types.
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
    """Returns the memory of an exploration, whose values all come back with their types.

    Raises:
      CheckpointError: for others, such as NumPy scalars, with which an exploration computes in
        another precision than with Python's.
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
    """Returns what was saved, in the arrays, lists and dicts that are held where they fit.

    An exploration may have taken them out of its memory once, to work in them.

    Args:
      held: what the memory has at a place.
      saved: what it had there when it was saved.
      filled: identities of what has been filled. An object that is held at several places at the
        start, as in `[zeros] * 3`, may have been replaced by others there, so it is filled once.
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
