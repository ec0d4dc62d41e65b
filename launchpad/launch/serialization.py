"""Forwards absl flags from the launcher to its processes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from absl import flags

FLAGS = flags.FLAGS


def dump_flags(overrides: Mapping[str, Any]) -> bytes:
    """Pickles the values of the flags that are set here, and `overrides` over them."""
    values: dict[str, Any] = {}
    if FLAGS.is_parsed():
        for name in FLAGS:
            flag = FLAGS[name]
            if flag.present or not flag.using_default_value:
                values[name] = flag.value
    values.update(overrides)
    kept = {name: value for name, value in values.items() if _pickles(value)}
    return pickle.dumps((FLAGS.is_parsed() or bool(overrides), kept))


def load_flags(data: bytes) -> None:
    """Sets the flags of this process; flags that are not defined here yet are defined."""
    is_parsed, values = pickle.loads(data)
    if not is_parsed:
        return
    for name, value in values.items():
        if name not in FLAGS:
            _define(name, value)
        else:
            _assign(FLAGS[name], value)
    if not FLAGS.is_parsed():
        FLAGS.mark_as_parsed()


def _define(name: str, value: Any) -> None:
    # A module that is imported later may define it properly: it then takes the value over.
    flags.DEFINE_string(name, None, "Forwarded by the launcher.", allow_override=True)
    FLAGS[name].value = value
    FLAGS[name].using_default_value = False


def _assign(flag: flags.Flag, value: Any) -> None:
    if isinstance(value, str):
        flag.parse(value)
    else:
        flag.value = value
    flag.using_default_value = False


def _pickles(value: Any) -> bool:
    try:
        pickle.dumps(value)
        return True
    except Exception:
        return False
