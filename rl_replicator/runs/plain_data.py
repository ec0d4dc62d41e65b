"""Converts configs to plain data, as in JSON and TOML, and back.

`to_plain` and `from_plain` are inverses for frozen dataclasses of what Pydantic reads and writes as
JSON: numbers, strings, paths, `Literal`, `Enum`, lists, tuples, mappings and dataclasses.
`as_stored` refuses all other values before a run begins, because the run could not be continued.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rl_replicator.errors import ConfigError, UsageError

if TYPE_CHECKING:
    import pydantic
    import pydantic_core


def to_plain(value: Any, name: str = "settings") -> Any:
    """Returns settings as plain data: dictionaries, lists, numbers, strings, booleans and None.

    Args:
      value: a config dataclass, or any value of a setting.
      name: its name in messages.

    Raises:
      ConfigError: if a value has a type, or characters, that cannot be stored.
    """
    import pydantic_core

    try:
        plain = pydantic_core.to_jsonable_python(value)
        json.dumps(plain, ensure_ascii=False).encode()
        return plain
    except UnicodeEncodeError:
        raise ConfigError(
            f"expected text in the encoding of this locale for {name!r}, got {value!r}; set "
            "LC_ALL=C.UTF-8"
        ) from None
    except pydantic_core.PydanticSerializationError as error:
        raise ConfigError(
            f"expected a type that config.json can hold for {name!r}, got {value!r} ({error}); "
            "name a function by its import path, 'package.module:function'"
        ) from None


def from_plain(kind: type, plain: Mapping[str, Any], command: str = "", group: str = "") -> Any:
    """Rebuilds a config dataclass from the result of `to_plain`.

    Args:
      kind: the dataclass.
      plain: its part of `RunDirectory.config`, or of a file that a user has written.
      command: the command that lists the settings, for messages; empty if a run has stored them.
      group: prefix of the names in messages, such as `agent.`.

    Returns:
      An instance of `kind`. Settings that `plain` lacks have their defaults.

    Raises:
      ConfigError: if a value has characters that cannot be stored.
      UsageError: if `plain` has a setting that `kind` lacks, lacks a setting without default, or
        has a value of another type.
    """
    import pydantic

    for name, value in flat(plain).items():
        to_plain(value, f"{group}{name}")  # Refuses text that is not Unicode.
    text = json.dumps(plain, default=str)  # TOML has dates.
    try:
        return _adapter(kind).validate_json(text, strict=True, extra="forbid")
    except pydantic.ValidationError as error:
        raise _usage_error(error.errors()[0], plain, command, group) from None


def as_stored(config: Any, group: str = "") -> Any:
    """Returns a config as it will be restored from the directory of its run.

    A run that trains with this config is continued, and evaluated, with an equal one.

    Args:
      config: a config dataclass.
      group: prefix of the names in messages.

    Raises:
      ConfigError: if it could not be restored exactly. The message names the setting.
    """
    for field in dataclasses.fields(config):
        to_plain(getattr(config, field.name), f"{group}{field.name}")  # Its error has the name.
        if isinstance(getattr(config, field.name), set | frozenset):
            raise ConfigError(
                f"expected a type that config.json can restore for '{group}{field.name}', got a "
                "set, which has no order; use a tuple"
            )
    stored = from_plain(type(config), to_plain(config), group=group)
    for field in dataclasses.fields(config):
        value, rebuilt = getattr(config, field.name), getattr(stored, field.name)
        if isinstance(value, list | tuple) and isinstance(rebuilt, list | tuple):
            value = type(rebuilt)(value)
        if value != rebuilt and value == value:  # NaN differs from itself.
            raise ConfigError(
                f"expected a type that config.json can restore for '{group}{field.name}', got "
                f"{value!r}, which would be restored as {rebuilt!r}; annotate it with one type "
                "that is stored in its own way, and let __post_init__ leave it unchanged"
            )
    return stored


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns settings by dotted name, without groups.

    Args:
      settings: plain data.
      prefix: goes before all names.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        is_group = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{name}.") if is_group else {f"{prefix}{name}": value}
    return found


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


@functools.cache
def _adapter(kind: type) -> "pydantic.TypeAdapter":
    import pydantic

    return pydantic.TypeAdapter(kind)


def _usage_error(
    first: "pydantic_core.ErrorDetails", plain: Any, command: str, group: str
) -> UsageError:
    """Returns Pydantic's first error as ours, or our own error that a dataclass has raised."""
    own = first.get("ctx", {}).get("error")
    if isinstance(own, UsageError):
        return own
    path = _path(first["loc"], plain)
    name = group + ".".join(path)
    if first["type"] == "unexpected_keyword_argument":
        remedy = f"'{command} --help' lists them" if command else "use the version that stored it"
        return UsageError(f"expected settings that exist, got {name!r}; {remedy}")
    if first["type"] == "missing":
        name = group + ".".join([*path, str(first["loc"][-1])])
        return UsageError(f"expected a setting {name!r}, got none; add it")
    expected = first["msg"].replace("Input should be", "").strip()
    return UsageError(f"expected {expected} for {name!r}, got {first['input']!r}; correct it")


def _path(place: Sequence[int | str], plain: Any) -> list[str]:
    """Returns the names in the place of an error, without the members of unions."""
    names = []
    for part in place:
        is_there = (isinstance(plain, Mapping) and part in plain) or isinstance(plain, list)
        if is_there:
            plain = plain[part]
            names.append(str(part))
    return names
