"""Converts users' functions, and their results to tensors."""

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx, converter
from tensorflow.python.autograph.impl import api
from tensorflow.python.util import nest as nest_lib

from rl_replicator import errors

# Bytes that the code of a step may have.
_CODE_SIZE = 1 << 16


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a user's function use `if` and `for` on tensors, as in any `tf.function`.

    Raises:
      DiskError: if there is no space for the code that AutoGraph writes. AutoGraph itself would
        leave the function as it is.
    """
    try:
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(_CODE_SIZE))
    except OSError as error:
        raise errors.DiskError(
            f"expected space in the folder for temporary files, where AutoGraph writes code, got "
            f"{error}; free some space, or set TMPDIR to another folder"
        ) from None
    options = converter.ConversionOptions(recursive=True)
    context = ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED, options)
    return api.tf_convert(function, context, user_requested=True)


@tf.autograph.experimental.do_not_convert
def as_tensors(nest: Any, receiver: str) -> Any:
    """Converts the leaves of a nest to tensors.

    Args:
      nest: tensors, variables, numbers, strings and arrays in dictionaries, lists and tuples; None
        stays None, and `tf.IndexedSlices` become dense.
      receiver: where the nest occurs, for the error message: "from step_fn" or "in the batch".

    Returns:
      The nest, with tensors and None for leaves.

    Raises:
      ConfigError: if a leaf is something else; names the first one and its place in the nest. See
        also `with_paths`.
    """
    flat = [as_tensor(leaf, path, receiver) for path, leaf in with_paths(nest)]
    return tf.nest.pack_sequence_as(nest, flat)


def with_paths(nest: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Returns the leaves of a nest, each with the keys, indices and fields that lead to it.

    Raises:
      ConfigError: if the keys of a dictionary cannot be sorted, to give the leaves an order.
    """
    try:
        return nest_lib.flatten_with_tuple_paths(nest)
    except TypeError as error:
        raise errors.ConfigError(
            f"expected dictionaries with keys that can be sorted, got one with others ({error}); "
            "use keys of one type in each, such as str"
        ) from None


def as_tensor(leaf: Any, path: Sequence[Any], receiver: str) -> tf.Tensor | None:
    """Converts a leaf of a nest.

    Args:
      leaf: the leaf.
      path: see `with_paths`.
      receiver: see `as_tensors`.

    Raises:
      ConfigError: see `as_tensors`.
    """
    if leaf is None:
        return None
    try:
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError):
        raise errors.ConfigError(
            f"expected tensors or numbers in dictionaries, lists or tuples {receiver}, got a "
            f"{type(leaf).__name__}{place(path)}; {_advice(leaf)}"
        ) from None


def place(path: Sequence[Any]) -> str:
    """Returns the place of a leaf for an error: " at ['a'][0]"; "" if the leaf is the whole nest.

    Args:
      path: see `with_paths`.
    """
    return " at " + "".join(f"[{key!r}]" for key in path) if path else ""


def _advice(leaf: Any) -> str:
    if isinstance(leaf, tf.RaggedTensor):
        return "make it dense with its to_tensor()"
    if isinstance(leaf, tf.SparseTensor):
        return "make it dense with tf.sparse.to_dense"
    if isinstance(leaf, tf.TensorArray):
        return "use its stack()"
    if dataclasses.is_dataclass(leaf):
        return "use a dictionary of its fields"
    return "convert it, or leave it out"
