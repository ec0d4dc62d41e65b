"""Pickles with classes that cannot be imported elsewhere, such as those of the main script.

cloudpickle sends such a class by value, and its loader overwrites the attributes of a class that
the receiver already has with those of the sender's class. Here, a class that the receiver has is
used unchanged, like one of an imported module: the state of a class belongs to its process.

cloudpickle numbers these classes, which identifies them in all processes of a program.
"""

from __future__ import annotations

import collections
import io
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle

# Classes that are being unpickled, and have no attributes yet; guarded by the lock.
_unfinished: weakref.WeakSet[type] = weakref.WeakSet()
# Unpickled classes: between calls nothing else may refer to them, and they would be lost with their
# attributes. Only the newest are kept, in case a sender makes classes without end.
_made: collections.deque[type] = collections.deque(maxlen=1000)
_lock = threading.RLock()


class Pickler(cloudpickle.Pickler):
    """Sends the number of a class, and its definition for a receiver that does not have it."""

    def reducer_override(self, obj: Any) -> Any:
        """Returns how an object is pickled; see `pickle.Pickler`."""
        reduced = super().reducer_override(obj)
        if not _is_by_value(obj, reduced):
            return reduced
        file = io.BytesIO()
        try:
            _DefinitionPickler(file).dump(obj)
        except Exception as error:  # For example, a method uses a lock.
            return _find_or_make, (_number(reduced), obj.__qualname__, str(error))
        return _find_or_make, (_number(reduced), obj.__qualname__, file.getvalue())


def dumps(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Returns the pickle (protocol 5) of a value, for `pickle.loads`."""
    file = io.BytesIO()
    Pickler(file, protocol=5, buffer_callback=buffer_callback).dump(value)
    return file.getvalue()


class _DefinitionPickler(cloudpickle.Pickler):
    """Pickles a whole class, with all others that it uses: these may use one another."""

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if not _is_by_value(obj, reduced):
            return reduced
        make, args, state, _, _, set_state = reduced
        return _begin, (_number(reduced), make, args), (set_state, state), None, None, _finish


def _is_by_value(obj: Any, reduced: Any) -> bool:
    """Whether `obj` is a class that cloudpickle has reduced to its definition."""
    return isinstance(reduced, tuple) and len(reduced) == 6 and isinstance(obj, type)


def _number(reduced: tuple[Any, ...]) -> str:
    """Returns the number of a class: the second-to-last argument of the function that makes it."""
    return reduced[1][-2]


def _find(number: str) -> type | None:
    return cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(number)


def _find_or_make(number: str, name: str, definition: bytes | str) -> type:
    """Returns the class with this number.

    Args:
      number: The number of the class.
      name: Its name, for the message.
      definition: Its pickled definition, or the reason why it could not be pickled.

    Raises:
      TypeError: the receiver does not have it, and it could not be sent.
    """
    with _lock:
        found = _find(number)
        if found is not None and found not in _unfinished:
            return found
        if isinstance(definition, str):
            raise TypeError(
                f"class {name} of another process can't be sent to this one: {definition}. Define "
                "it in a module that both import"
            )
        return pickle.loads(definition)


def _begin(number: str, make: Callable[..., type], args: tuple[Any, ...]) -> type:
    """Returns the class with this number, or a new one without attributes."""
    found = _find(number)
    if found is None:
        found = make(*args)
        _unfinished.add(found)
    return found


def _finish(kind: type, state: tuple[Callable[[type, Any], Any], Any]) -> None:
    """Gives a new class its attributes; one that was there before keeps its own."""
    if kind in _unfinished:
        set_state, attributes = state
        set_state(kind, attributes)
        _unfinished.discard(kind)
        _made.append(kind)
