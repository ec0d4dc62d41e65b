"""Arguments that become real objects only inside the node that uses them."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Leaves of these types stand for themselves: skipping them makes a list of a million fast.
_PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})


class Dereferenceable(abc.ABC, Generic[T]):
    """Something that stands for an object until it is dereferenced."""

    @abc.abstractmethod
    def dereference(self) -> T:
        """Returns the object."""


class Deferred(Dereferenceable[T]):
    """Delays `constructor(*args, **kwargs)` until the node starts; for unpicklable objects."""

    def __init__(self, constructor: Callable[..., T], *args: Any, **kwargs: Any):
        self._constructor = constructor
        self._args = args
        self._kwargs = kwargs

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the call."""
        return self._args, self._kwargs

    def dereference(self) -> T:
        """Calls the function, with clients in place of the handles among its arguments."""
        return self._construct({})

    def _construct(self, made: dict[Deferred[Any], Any]) -> T:
        """Like `dereference`, but reuses the objects in `made`: each is made once."""
        if self not in made:
            args, kwargs = _dereference_tree((self._args, self._kwargs), made)
            made[self] = self._constructor(*args, **kwargs)
        return made[self]


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Applies `function` to the leaves of mappings, lists, tuples, dataclasses, attrs and partials.

    A `Dereferenceable` is a leaf, whatever else it is. Numbers, strings and None in such containers
    are left as they are.

    A container in which nothing changes is returned as it is, not as a copy, so that objects keep
    their identity where nodes are threads of one process.
    """
    return _map(function, tree, ())


def _map(function: Callable[[Any], Any], tree: Any, parents: tuple[int, ...]) -> Any:
    if id(tree) in parents:  # A structure that contains itself.
        return tree
    if isinstance(tree, Dereferenceable):
        return function(tree)
    recurse = functools.partial(_map, function, parents=(*parents, id(tree)))
    if isinstance(tree, Mapping):
        changed = _changes(recurse, tree.items())
        if not changed:
            return tree
        if isinstance(tree, MutableMapping):
            tree = copy.copy(tree)
            tree.update(changed)
            return tree
        kind: Any = type(tree)  # Such as types.MappingProxyType.
        return kind({**tree, **changed})
    if isinstance(tree, (list, tuple)):
        changed = _changes(recurse, enumerate(tree))
        if not changed:
            return tree
        items = [changed.get(i, item) for i, item in enumerate(tree)]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    fields = _fields(tree)
    if fields is not None:
        names = (name for name in fields if hasattr(tree, name))
        changed = _changes(recurse, ((name, getattr(tree, name)) for name in names))
        if changed:
            tree = copy.copy(tree)
            for name, value in changed.items():
                object.__setattr__(tree, name, value)  # Works for frozen ones too.
        return tree
    if type(tree) is functools.partial:
        args, kwargs = recurse(tree.args), recurse(tree.keywords)
        if args is tree.args and kwargs is tree.keywords:
            return tree
        return functools.partial(tree.func, *args, **kwargs)
    return function(tree)


def _fields(tree: Any) -> list[str] | None:
    """Returns the names of the fields of a dataclass or an attrs object; None for others."""
    if isinstance(tree, type):
        return None
    if dataclasses.is_dataclass(tree):
        return [field.name for field in dataclasses.fields(tree)]
    attributes = getattr(type(tree), "__attrs_attrs__", None)
    return None if attributes is None else [attribute.name for attribute in attributes]


def _changes(recurse: Callable[[Any], Any], items: Any) -> dict[Any, Any]:
    others = ((key, value) for key, value in items if type(value) not in _PLAIN_TYPES)
    mapped = ((key, value, recurse(value)) for key, value in others)
    return {key: new for key, old, new in mapped if new is not old}


def maybe_dereference(value: Any) -> Any:
    """Dereferences a handle; returns anything else as it is."""
    return value.dereference() if isinstance(value, Dereferenceable) else value


def dereference_tree(tree: Any) -> Any:
    """Replaces every handle and `Deferred` in `tree` by what it stands for.

    A `Deferred` that occurs several times, also in the arguments of others, becomes one object.
    """
    return _dereference_tree(tree, {})


def _dereference_tree(tree: Any, made: dict[Deferred[Any], Any]) -> Any:
    def leaf(value: Any) -> Any:
        return value._construct(made) if isinstance(value, Deferred) else maybe_dereference(value)

    return map_tree(leaf, tree)
