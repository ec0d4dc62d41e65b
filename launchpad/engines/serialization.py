"""Sends nodes and absl flags from the launcher to its processes."""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
from absl import flags

FLAGS = flags.FLAGS


class _Pickler(cloudpickle.CloudPickler):
    """Pickles absl flags by name, because the flag objects hold parts that do not pickle."""

    def reducer_override(self, obj: Any) -> Any:
        if obj is FLAGS:
            return _all_flags, ()
        if isinstance(obj, flags.FlagHolder):
            return _holder, (obj.name, FLAGS[obj.name].value)
        if isinstance(obj, functools._lru_cache_wrapper) and _is_local(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


def _is_local(function: Any) -> bool:
    """Whether another process can't import a function, so that it has to be sent by value."""
    return function.__module__ == "__main__" or "<locals>" in function.__qualname__


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Callable[..., Any]:
    return functools.lru_cache(**parameters)(function)


def dumps(value: Any) -> bytes:
    """Pickles `value`; what is defined in the main script is pickled by value."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def dump_node(node: Any, name: str) -> bytes:
    """Pickles the node called `name` for another process.

    Raises:
      TypeError: it holds something that does not pickle.
    """
    try:
        return dumps(node)
    except Exception as error:
        raise TypeError(
            f"node {name} can't be sent to a process: {error}. Pass a function that makes the "
            "object, or wrap it in lp.Deferred, so that it is made in the node"
        ) from error


def check_nodes_are_serializable(label: str, nodes: Sequence[Any]) -> None:
    """Checks that nodes can be sent to processes.

    Args:
      label: Their group, for the message.
      nodes: The nodes.

    Raises:
      RuntimeError: One of them does not pickle.
    """
    for index, node in enumerate(nodes):
        try:
            dump_node(node, f"{label}/{index}")
        except TypeError as error:
            raise RuntimeError(
                f"The nodes associated to the label '{label}' were not serializable: {error}; or "
                "pass serialize_py_nodes=False to lp.launch"
            ) from error


def serialize_nodes(data_file_path: str, label: str, nodes: Sequence[Any]) -> None:
    """Writes the functions of nodes to a file that cloudpickle can read.

    Args:
      data_file_path: The file.
      label: Their group, for messages.
      nodes: The nodes.

    Raises:
      RuntimeError: One of them does not pickle.
    """
    check_nodes_are_serializable(label, nodes)
    with open(data_file_path, "wb") as file:
        file.write(dumps([node.function for node in nodes]))


def _all_flags() -> flags.FlagValues:
    return FLAGS


def _holder(name: str, value: Any) -> flags.FlagHolder[Any]:
    if name not in FLAGS:
        _define(name, value)
    return flags.FlagHolder(FLAGS, FLAGS[name])


def parsed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parses values of flags that are given as text, if the flags are defined in this process.

    Flags of the main script are defined only here; others may be defined only in nodes.

    Raises:
      absl.flags.IllegalFlagValueError: a flag does not accept its text.
    """
    return {
        name: FLAGS[name]._parse(value) if isinstance(value, str) and name in FLAGS else value
        for name, value in values.items()
    }


def dump_flags() -> bytes:
    """Pickles the values of the flags that are set here."""
    values: dict[str, Any] = {}
    if FLAGS.is_parsed():
        # The nodes' processes do not import the main script, so they do not define its flags.
        own = {flag.name for flag in FLAGS.flags_by_module_dict().get(sys.argv[0], ())}
        for name in FLAGS:
            flag = FLAGS[name]
            if name in own or flag.present or not flag.using_default_value:
                values[name] = flag.value
    return _dump_values(FLAGS.is_parsed(), values)


def dump_args(args: Mapping[str, Any]) -> bytes:
    """Pickles values of flags that a group of nodes has in addition to those set here."""
    return _dump_values(bool(args), parsed(args))


def _dump_values(are_parsed: bool, values: Mapping[str, Any]) -> bytes:
    return dumps((are_parsed, {name: value for name, value in values.items() if _pickles(value)}))


def load_flags(*dumped: bytes) -> None:
    """Sets flags of this process, and defines those that are not defined, as of the main script.

    Args:
      *dumped: Results of `dump_flags` and `dump_args`; later ones override earlier ones.
    """
    loaded = [values for are_parsed, values in map(pickle.loads, dumped) if are_parsed]
    for name, value in ((name, value) for values in loaded for name, value in values.items()):
        if name in FLAGS:
            _assign(FLAGS[name], value)
        else:
            _define(name, value)
    if loaded and not FLAGS.is_parsed():
        FLAGS.mark_as_parsed()


# With this, absl's errors name the module that defines a flag twice, instead of this one.
flags.disclaim_key_flags()


def _define(name: str, value: Any) -> None:
    """Defines a flag with this value; a module that defines it later gives it its own default."""
    parser: flags.ArgumentParser[Any] = flags.ArgumentParser()
    FLAGS[name] = flags.Flag(parser, None, name, None, "Sent by the launcher.", allow_override=True)
    _assign(FLAGS[name], value)


def _assign(flag: flags.Flag, value: Any) -> None:
    if isinstance(value, str):
        flag.parse(value)
    else:
        flag.value = value
    flag.using_default_value = False


def _pickles(value: Any) -> bool:
    try:
        dumps(value)
        return True
    except Exception:
        return False
