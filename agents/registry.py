"""Parts that a setting selects: a built-in one by name, or a user-defined one by import path."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from environments.errors import (
    EnvironmentConstructionError,
    EnvironmentNameError,
    import_function,
)
from rl_replicator.errors import ConfigError


def find_part(name: str, known: Mapping[str, Any], option: str) -> Any:
    """Looks up the part that a setting names.

    Args:
      name: a key of `known`, or `package.module:attribute`.
      known: the built-in parts, by name.
      option: path of the setting, such as "agent.encoder", for the error message.

    Returns:
      The value in `known`, or the imported function.

    Raises:
      ConfigError: if there is no such part, or its module cannot be found or raises.
    """
    if name in known:
        return known[name]
    word = f"--{option.replace('_', '-')}"
    try:
        return import_function(name, f"{word}: expected {', '.join(known)} or package.module:name")
    except EnvironmentNameError as error:
        raise ConfigError(str(error)) from None
    except EnvironmentConstructionError as error:
        raise ConfigError(f"{word}: {error}") from error.__cause__


def features_of(option: str, module: Any, inputs: Any) -> tf.Tensor:
    """Calls a torso or an encoder, which may be the user's.

    Args:
      option: path of the setting that named the part.
      module: the object that the part has returned.
      inputs: nest of [B, ...], tensors or arrays.

    Returns:
      [B, N] float32.

    Raises:
      ConfigError: if it is not a module, or returns anything else.
    """
    word = f"--{option.replace('_', '-')}"
    if not isinstance(module, tf.Module):  # The variables of a function would not be found.
        raise ConfigError(
            f"{word}: expected a function that returns a module, of Sonnet or Keras, got "
            f"a {type(module).__name__}"
        )
    features = tf.convert_to_tensor(module(inputs))
    size = tf.nest.flatten(inputs)[0].shape[0]
    check_shape(option, "features", features.shape, tf.TensorShape([size, None]))
    if features.dtype != tf.float32:
        raise ConfigError(
            f"{word}: expected float32 features, got {features.dtype.name}; cast them"
        )
    return features


def check_shape(option: str, what: str, shape: Any, expected: Any, each: str = "example") -> None:
    """Checks the result of a user-defined part: a wrong shape may broadcast silently.

    Args:
      option: path of the setting that named the part.
      what: name of the result, for the error message.
      shape: the `tf.TensorShape` of the result.
      expected: the `tf.TensorShape` that it should have.
      each: what has one such result, for the error message.

    Raises:
      ConfigError: if they differ in rank or in a known dimension.
    """
    if shape.rank != expected.rank or not shape.is_compatible_with(expected):
        raise ConfigError(
            f"--{option.replace('_', '-')}: expected {what} of shape {expected}, got {shape}; "
            f"return one for each {each}"
        )
