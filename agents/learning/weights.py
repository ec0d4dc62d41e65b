"""Weights sent from learner to actors, `{path: array}`, and their part of a checkpoint.

Imports no TensorFlow: the counter saves weights.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from rl_replicator.errors import ConfigError

if TYPE_CHECKING:
    import sonnet as snt
    import tensorflow as tf

# Name under which a learner's `get_variables` serves the number of steps of its weights.
LEARNER_STEPS = "learner_steps"
# Name that requests this number and all networks together, so that they are of one step.
EVERYTHING = "everything"

_WEIGHTS = "weights.npz"
# GPUs may round differently in each call; bfloat16 rounds by a percent.
_ROUNDING = 0.05


class WeightsPart:
    """Weights inside a checkpoint, readable without the learner that wrote them.

    Once restored, it is a `VariableSource` for actors.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray] | None = None):
        """Stores the weights.

        Args:
          arrays: weights by path; None before a restore.
        """
        self._arrays = dict(arrays or {})

    def save(self, folder: Path) -> None:
        """Writes the weights."""
        np.savez(folder / _WEIGHTS, **self._arrays)

    def capture(self) -> WeightsPart:
        """Returns this object: the arrays do not change."""
        return self

    def restore(self, folder: Path) -> None:
        """Reads the weights."""
        with np.load(folder / _WEIGHTS) as file:
            self._arrays = dict(file)

    def get_variables(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns the variables of the named networks, by path."""
        return select(self._arrays, names)


def select(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the arrays that belong to the named networks.

    Args:
      arrays: path -> array.
      names: names of networks; `EVERYTHING` is all of them.

    Raises:
      KeyError: if a network has no array.
    """
    if EVERYTHING in names:
        return dict(arrays)
    networks = {path.split("/", 1)[0] for path in arrays}
    if not set(names) <= networks:
        raise KeyError(f"expected names among {sorted(networks)}, got {list(names)}")
    return {path: array for path, array in arrays.items() if path.split("/", 1)[0] in names}


def named_variables(name: str, module: snt.Module) -> dict[str, tf.Variable]:
    """Returns a module's variables by path.

    Args:
      name: first part of every path.
      module: a built module.

    Raises:
      ConfigError: if two variables have the same name.
    """
    # A variable's name contains those of the enclosing modules ("policy/torso/linear_0/w:0"), the
    # same in every process that builds the module under the same name. Layers that were made before
    # the module, such as those of a `snt.Sequential`, lack its name. In Keras, `name_scope` is a
    # method.
    around = getattr(module.name_scope, "name", module.name).split("/")[0] + "/"
    paths = [f"{name}/{v.name.removeprefix(around).split(':')[0]}" for v in module.variables]
    doubles = sorted(path for path, count in collections.Counter(paths).items() if count > 1)
    if doubles:
        raise ConfigError(
            f"expected distinct variable names in {name}, got several of {', '.join(doubles)}; "
            "give each layer a name="
        )
    return dict(zip(paths, module.variables, strict=True))


def check_same_names(name: str, module: snt.Module, again: snt.Module) -> None:
    """Checks that the variables of a network have the same paths every time it is built.

    Keras numbers the unnamed layers of a process: actors and evaluators, which rebuild the
    learner's network, would not find its weights.

    Args:
      name: name of the network.
      module: a built network.
      again: the same network, built again.

    Raises:
      ConfigError: if a path differs.
    """
    paths = [[*named_variables(name, built)] for built in (module, again)]
    for first, second in zip(*paths, strict=True):
        if first != second:
            raise ConfigError(
                f"expected the same variable names in {name} each time it is built, got {first} "
                f"and then {second}; give each layer a name="
            )


def check_same_results(compute: Callable[[], Any], again: Callable[[], Any]) -> None:
    """Checks that networks compute the same whenever they are built and given their weights.

    Random numbers that one keeps outside of variables, such as a random projection, differ between
    processes, and are not in checkpoints. Networks that draw numbers in every call are not
    compared.

    Args:
      compute: calls built networks; returns a nest of tensors.
      again: calls the same networks, built again, with equal variables and on the same inputs.

    Raises:
      ConfigError: if their results differ.
    """
    first, second, other = compute(), compute(), again()
    if _difference(first, other) > max(_ROUNDING, 10.0 * _difference(first, second)):
        raise ConfigError(
            "expected encoder, policy and critic to compute the same each time they are built and "
            "given their weights, got other results; keep numbers that a network draws in "
            "tf.Variable(..., trainable=False)"
        )


def _difference(outputs: Any, others: Any) -> float:
    """Returns the greatest difference of nests of tensors, relative to each tensor's greatest."""
    pairs = zip(tree.flatten(outputs), tree.flatten(others), strict=True)
    arrays = [(np.array(a, np.float64), np.array(b, np.float64)) for a, b in pairs]
    least = np.finfo(np.float64).tiny
    return max(np.abs(a - b).max() / max(np.abs(a).max(), least) for a, b in arrays)


def collect_variables(
    networks: Mapping[str, snt.Module], names: Iterable[str]
) -> dict[str, tf.Variable]:
    """Returns the variables of some networks by path.

    Sonnet finds the variables of a module by walking through its attributes, which takes longer
    than copying small weights: code that copies them repeatedly should collect them once.

    Args:
      networks: built modules by name.
      names: the networks to take.

    Returns:
      path -> variable; a path begins with the name of its network.

    Raises:
      KeyError: if there is no network of such a name.
    """
    variables: dict[str, tf.Variable] = {}
    for name in names:
        variables.update(named_variables(name, networks[name]))
    return variables


def copy_variables(
    networks: Mapping[str, snt.Module], names: Iterable[str]
) -> dict[str, np.ndarray]:
    """Copies the variables of some networks; see `collect_variables`."""
    return {path: v.numpy() for path, v in collect_variables(networks, names).items()}


def names_with_variables(networks: Mapping[str, snt.Module]) -> tuple[str, ...]:
    """Returns the names of the networks that have variables (an identity encoder has none)."""
    return tuple(name for name, network in networks.items() if network.variables)


def check_arrays(variables: Mapping[str, tf.Variable], arrays: Mapping[str, np.ndarray]) -> None:
    """Checks that every variable has an array of its shape.

    Args:
      variables: the variables by path.
      arrays: path -> array; may have other paths too.

    Raises:
      ValueError: if a variable has no array or one of another shape.
    """
    for path, variable in variables.items():
        if path not in arrays:
            raise ValueError(f"expected an array for {path}, got only {sorted(arrays)}")
        if arrays[path].shape != tuple(variable.shape):
            raise ValueError(
                f"expected shape {tuple(variable.shape)} for {path}, got {arrays[path].shape}; "
                "actor and learner must be built from the same config and environment"
            )
