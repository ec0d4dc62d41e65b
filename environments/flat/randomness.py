"""States of random generators as plain data, so that resumed runs continue their streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

NumpyRandom = np.random.RandomState | np.random.Generator


def snapshot(random: NumpyRandom) -> dict[str, Any]:
    """Returns the generator's state as dicts, lists, strings and numbers, which JSON preserves."""
    return _plain(_raw_state(random))


def restore(random: NumpyRandom, state: Mapping[str, Any]) -> None:
    """Restores the state of a generator.

    Args:
      random: generator of the same kind as the one of the snapshot.
      state: return value of `snapshot`.

    Raises:
      ValueError: if the snapshot is of another kind of generator.
    """
    present = _raw_state(random)
    if state.get("bit_generator") != present["bit_generator"]:
        raise ValueError(
            f"expected the random state of a {present['bit_generator']} generator, got one of "
            f"{state.get('bit_generator')!r}; use the version of the environment that saved it"
        )
    raw = _like(present, state)
    if isinstance(random, np.random.RandomState):
        random.set_state(raw)
    else:
        random.bit_generator.state = raw


def _raw_state(random: NumpyRandom) -> dict[str, Any]:
    if isinstance(random, np.random.RandomState):
        return dict(random.get_state(legacy=False))
    return dict(random.bit_generator.state)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def _like(template: Any, value: Any) -> Any:
    """Returns `value` with arrays where `template` holds arrays."""
    if isinstance(template, Mapping):
        return {key: _like(item, value[key]) for key, item in template.items()}
    return np.asarray(value, template.dtype) if isinstance(template, np.ndarray) else value
