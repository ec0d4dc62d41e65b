"""Converts configs to plain data, as in JSON and TOML, and back.

`to_plain` and `from_plain` are inverses for dataclasses of these types: bool, int, float, str,
None, paths, `Literal`, `Enum` (stored by name, as on the command line), lists, tuples, sets,
mappings with keys that are stored as strings, dataclasses, and unions of these. `as_stored` refuses
all other values before a run begins, because the run could not be continued.
"""

import dataclasses
import difflib
import enum
import inspect
import json
import math
import os
import types
import typing
from collections.abc import (
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
    Set,
)
from pathlib import PurePath
from typing import Any

from rl_replicator.errors import ConfigError, UsageError

_SCALARS = (bool, int, float, str, types.NoneType)
# Annotations of collections -> the type that is created for each.
_LISTS: Mapping[Any, Any] = {
    list: list,
    MutableSequence: list,
    Sequence: tuple,
    Collection: tuple,
    Iterable: tuple,
}
_SETS: Mapping[Any, Any] = {set: set, MutableSet: set, frozenset: frozenset, Set: frozenset}
_MAPPINGS = (dict, Mapping, MutableMapping)
_STORABLE = "bool, int, float, str, Path, Literal, Enum, list, tuple, set, dict, dataclass"


def to_plain(value: Any, name: str = "") -> Any:
    """Returns settings as plain data: dictionaries, lists, numbers, strings, booleans and None.

    Args:
      value: a config dataclass, or any value of a setting.
      name: its name in messages.

    Returns:
      Equal data for equal settings: sets are sorted. Fields that are not arguments of `__init__`
      are left out, because they follow from the others.

    Raises:
      ConfigError: if a value has a type that cannot be stored.
    """
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name), _join(name, field.name))
            for field in _fields(type(value))
        }
    if isinstance(value, Mapping):
        keys = [to_plain(key, f"{name}[{key!r}]") for key in value]
        if wrong := [key for key in keys if not isinstance(key, str)]:
            raise ConfigError(
                f"expected strings as keys of {name!r}, got {wrong[0]!r}; use strings"
            )
        items = zip(keys, value.values(), strict=True)
        return {key: to_plain(item, _join(name, key)) for key, item in items}
    if isinstance(value, list | tuple | set | frozenset):
        plain = [to_plain(item, f"{name}[{index}]") for index, item in enumerate(value)]
        return sorted(plain, key=json.dumps) if isinstance(value, set | frozenset) else plain
    remedy = f"use one of these: {_STORABLE}"
    if inspect.isroutine(value):
        remedy = f"give its import path as a string, {_import_path(value)}"
    raise ConfigError(
        f"expected a type that config.json can restore for {name!r}, got "
        f"{type(value).__name__}: {value!r} cannot be stored; {remedy}"
    )


def _import_path(function: Any) -> str:
    """Returns how a setting should name a function, for an error."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<>")
    if module in (None, "__main__") or "<" in name:  # Of the script itself, or a lambda.
        return "'package.module:function', and define it in such a module"
    return f"'{module}:{name}'"


def from_plain(
    kind: type,
    plain: Mapping[str, Any],
    command: str = "",
    beside: Collection[str] = (),
    group: str = "",
) -> Any:
    """Rebuilds a config dataclass from the result of `to_plain`.

    Args:
      kind: the dataclass.
      plain: its part of `RunDirectory.config`, or of a file that a user has written.
      command: the command that lists the settings, if a user may have written them; empty if a run
        has stored them. It is used in messages.
      beside: names of other settings that a user may have meant.
      group: prefix of the names in messages, such as `agent.`.

    Returns:
      An instance of `kind`. Settings that `plain` lacks have their defaults. A `Sequence` is
      rebuilt as a tuple, and an abstract set as a frozenset.

    Raises:
      UsageError: if `plain` has a setting that `kind` lacks, lacks a setting without default, or
        has a value of another type.
    """
    hints = typing.get_type_hints(kind)
    fields = _fields(kind)
    names = [field.name for field in fields]
    unknown = sorted(set(plain) - set(names))
    if unknown:
        remedy = "use the version of rl-replicator that made the run"
        if command:
            near = difflib.get_close_matches(unknown[0], [*names, *beside], n=1)
            meant = near and (near[0] if near[0] in beside else f"{group}{near[0]}")
            remedy = f"did you mean {meant!r}?" if meant else f"'{command} --help' lists them"
        raise UsageError(
            "expected settings that this version of rl-replicator has, got "
            f"{', '.join(repr(f'{group}{name}') for name in unknown)}; {remedy}"
        )
    values = {}
    for field in fields:
        name = f"{group}{field.name}"
        if field.name in plain:
            values[field.name] = _value(hints[field.name], plain[field.name], name, command)
        elif dataclasses.MISSING is field.default is field.default_factory:
            raise UsageError(f"expected a setting {name!r}, got none; add it")
    return kind(**values)


def stored_part(identity: Mapping[str, Any], name: str, kind: type) -> Any:
    """Returns a part of the identity that a run has stored.

    Args:
      identity: the identity of a run, from its directory or from a model card.
      name: the name of the part.
      kind: its type.

    Raises:
      UsageError: if it is missing, or of another type.
    """
    value = identity.get(name)
    if not isinstance(value, kind):
        raise UsageError(
            f"expected {name!r} among the stored settings of the run, as 'rl-replicator train' "
            f"writes them, got {'none' if value is None else repr(value)}"
        )
    return value


def as_stored(config: Any, group: str = "") -> Any:
    """Returns a config as it will be restored from the directory of its run.

    A run that trains with this config is continued, and evaluated, with an equal one.

    Args:
      config: a config dataclass.
      group: prefix of the names in messages.

    Returns:
      A config of the same class with the same values. Sequences and sets are of the type that
      `from_plain` creates for their annotation; those from the command line may be of another one.

    Raises:
      ConfigError: if it could not be restored exactly. The message names the setting and its type.
    """
    kind = type(config)
    hints = typing.get_type_hints(kind)
    fields = _fields(kind)
    for field in fields:
        hint, value, name = hints[field.name], getattr(config, field.name), f"{group}{field.name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            as_stored(value, f"{name}.")  # Its error names the nested setting.
        plain = to_plain(value, name)
        try:
            rebuilt = _value(hint, plain, name, "")
        except UsageError as error:
            raise ConfigError(
                f"expected a type that config.json can restore for {name!r}, got {_named(hint)}: "
                f"{value!r} cannot be rebuilt as one; annotate {name!r} with the type that it has, "
                f"one of these: {_STORABLE}"
            ) from error
        if not _is_same(value, rebuilt):
            raise ConfigError(
                f"expected a type that config.json can restore for {name!r}, got {_named(hint)}: "
                f"{value!r} would be restored as {rebuilt!r}; annotate {name!r} with one type, not "
                "with a union of types that are stored alike"
            )
    stored = from_plain(kind, to_plain(config, group.rstrip(".")), group=group)
    for field in fields:
        value, rebuilt = getattr(config, field.name), getattr(stored, field.name)
        if not _is_same(value, rebuilt):
            raise ConfigError(
                f"expected {kind.__name__}(...) to leave {group}{field.name} = {value!r} "
                f"unchanged, got {rebuilt!r}; change __post_init__ so that a second call changes "
                "nothing"
            )
    return stored


def _fields(kind: Any) -> list[dataclasses.Field]:
    """Returns the fields that are arguments of `__init__`."""
    return [field for field in dataclasses.fields(kind) if field.init]


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _value(hint: Any, value: Any, name: str, command: str) -> Any:
    """Converts plain data to a value of a field's type; a value of that type remains as it is.

    Raises:
      UsageError: if the data is of another type.
    """
    hint = _bare(hint)
    if _is_union(hint):
        return _of_union(hint, value, name, command)
    kind, of = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is typing.Literal:
        # 1 does not match True here, although they are equal.
        found = [one for one in of if _is_same(one, value) or _is_same(to_plain(one), value)]
        if found:
            return found[0]
    elif dataclasses.is_dataclass(kind):
        if isinstance(value, typing.cast(type, kind)):
            return value
        if isinstance(value, Mapping):
            return from_plain(typing.cast(type, kind), value, command, group=f"{name}.")
    elif kind is tuple or kind in _LISTS or kind in _SETS:
        if _holds(hint, value):
            return _collection(hint, value, name, command)
    elif kind in _MAPPINGS:
        if isinstance(value, Mapping):
            of_key, of_item = of or (Any, Any)
            return {
                _value(of_key, key, _join(name, key), command): _value(
                    of_item, item, _join(name, key), command
                )
                for key, item in value.items()
            }
    elif isinstance(kind, enum.EnumMeta) and isinstance(value, str) and value in kind.__members__:
        return kind[value]
    elif isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    elif _is_of(kind, value):
        return value
    raise UsageError(f"expected {_expected(hint)} for {name!r}, got {value!r}; correct it")


def _of_union(hint: Any, value: Any, name: str, command: str) -> Any:
    """Converts plain data to a value of the first type of a union that accepts it.

    A dataclass whose settings are exactly those of the data comes first.
    """
    kinds: Sequence[Any] = typing.get_args(hint)
    if isinstance(value, Mapping):
        kinds = sorted(kinds, key=lambda kind: not _has_exactly(kind, value))
    holding = [kind for kind in kinds if _holds(kind, value)]
    if len(holding) == 1:  # Its error names the nested value that is wrong.
        return _value(holding[0], value, name, command)
    for kind in kinds:
        try:
            return _value(kind, value, name, command)
        except UsageError:
            continue
    raise UsageError(f"expected {_expected(hint)} for {name!r}, got {value!r}; correct it")


def _collection(hint: Any, value: Iterable[Any], name: str, command: str) -> Any:
    kind, of = typing.get_origin(hint) or hint, typing.get_args(hint)
    items = list(value)
    if kind is tuple and of and of[-1] is not ...:
        if len(items) != len(of):
            raise UsageError(
                f"expected {len(of)} values for {name!r}, got {len(items)}: {value!r}; correct it"
            )
        kinds: Iterable[Any] = of
    else:
        kinds = [of[0] if of else Any] * len(items)
    made = (
        _value(one, item, f"{name}[{index}]", command)
        for index, (one, item) in enumerate(zip(kinds, items, strict=True))
    )
    make = tuple if kind is tuple else {**_LISTS, **_SETS}[kind]
    try:
        return make(made)
    except TypeError:  # An item that is not hashable.
        raise UsageError(
            f"expected items without lists in them for {name!r}, got {value!r}; correct it"
        ) from None


def _holds(hint: Any, value: Any) -> bool:
    """Returns whether a collection has the form of a type, whatever its items are."""
    kind = typing.get_origin(hint) or hint
    if isinstance(value, Mapping):
        return dataclasses.is_dataclass(kind) or kind in _MAPPINGS
    if isinstance(value, list | tuple):
        return kind is tuple or kind in _LISTS or kind in _SETS
    return isinstance(value, set | frozenset) and kind in _SETS


def _has_exactly(kind: Any, plain: Mapping[str, Any]) -> bool:
    kind = typing.get_origin(kind) or kind
    return dataclasses.is_dataclass(kind) and {f.name for f in _fields(kind)} == set(plain)


def _bare(hint: Any) -> Any:
    """Returns a type without `NewType`, `Annotated` and `Final`, which do not change its values."""
    while True:
        if isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif typing.get_origin(hint) in (typing.Annotated, typing.Final):
            hint = typing.get_args(hint)[0]
        else:
            return hint


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _is_of(kind: Any, value: Any) -> bool:
    """Returns whether a value has an annotated type; a whole number counts as a float, too."""
    if kind is Any or isinstance(kind, typing.TypeVar):
        return True
    if not isinstance(kind, type) or typing.is_typeddict(kind):
        return False
    if isinstance(value, bool):
        return kind in (bool, object)
    return isinstance(value, (int, float) if kind is float else kind)


def _is_same(a: Any, b: Any) -> bool:
    """Returns whether two values are equal and of one type; a list and a tuple may be the same.

    Unlike `==`, this distinguishes an `IntEnum` from a number, and compares all fields of a
    dataclass that are stored.
    """
    if isinstance(a, enum.Enum) or isinstance(b, enum.Enum):
        return a is b
    if dataclasses.is_dataclass(a) or dataclasses.is_dataclass(b):
        return type(a) is type(b) and _all_same(_values(a), _values(b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_is_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return _all_same(a, b)
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, set | frozenset) and isinstance(b, set | frozenset):
        return a == b
    return a == b and (isinstance(a, type(b)) or isinstance(b, type(a)))


def _all_same(a: Collection[Any], b: Collection[Any]) -> bool:
    return len(a) == len(b) and all(map(_is_same, a, b))


def _values(config: Any) -> list[Any]:
    return [getattr(config, field.name) for field in _fields(type(config))]


def _expected(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(to_plain(choice)) for choice in typing.get_args(hint))
    if isinstance(hint, enum.EnumMeta):
        return " or ".join(map(repr, hint.__members__))
    return f"a value of type {_named(hint)}"


def _named(hint: Any) -> str:
    is_plain = typing.get_origin(hint) is None
    return getattr(hint, "__name__", str(hint)) if is_plain else str(hint)
