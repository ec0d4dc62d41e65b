"""Parts that a setting names: one of ours by its name, or a user's own by its import path."""

from collections.abc import Mapping
from typing import Any

from environments.errors import (
    EnvironmentConstructionError,
    EnvironmentNameError,
    import_user_module,
)
from rl_replicator.errors import ConfigError


def find_part(name: str, known: Mapping[str, Any], option: str) -> Any:
    """Looks up the part that a setting names.

    Args:
      name: a key of `known`, or `package.module:attribute`.
      known: the parts of this project, by name.
      option: path of the setting, such as "agent.encoder", for the error message.

    Returns:
      The value in `known`, or the imported attribute.

    Raises:
      ConfigError: if there is no such part, or its module cannot be found or raises.
    """
    if name in known:
        return known[name]
    module_name, colon, attribute = name.partition(":")
    word = f"--{option.replace('_', '-')}"
    expected = f"{word}: expected {', '.join(known)} or package.module:name"
    if not (module_name and colon and attribute):
        raise ConfigError(f"{expected}, got {name!r}")
    try:
        module = import_user_module(module_name)
    except EnvironmentNameError as error:
        raise ConfigError(f"{expected}, got {name!r}: {error}") from None
    except EnvironmentConstructionError as error:
        raise ConfigError(f"{word}: {error}") from error.__cause__
    if not hasattr(module, attribute):
        raise ConfigError(f"{expected}, got {name!r}: {module.__file__} has no {attribute!r}")
    return getattr(module, attribute)


def check_shape(option: str, what: str, shape: Any, expected: Any, each: str = "example") -> None:
    """Checks what a part of the user's has computed: a wrong shape may broadcast in silence.

    Args:
      option: path of the setting that named the part.
      what: name of the result, for the error message.
      shape: the `tf.TensorShape` of the result.
      expected: the `tf.TensorShape` that it should have.
      each: what has one of them, for the error message.

    Raises:
      ConfigError: if they differ in rank or in a known dimension.
    """
    if shape.rank != expected.rank or not shape.is_compatible_with(expected):
        raise ConfigError(
            f"--{option.replace('_', '-')}: expected {what} of shape {expected}, got {shape}; "
            f"return one for each {each}"
        )
