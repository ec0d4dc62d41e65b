"""What optimizers share: checked updates, and the parameter of a slot that is being created.

A slot needs the placement of its parameter: its layout on a mesh, or its logical device. Sonnet and
Keras pass a variable creator only the slot's name and initial value. But all of their optimizers
create slots in loops over the parameters, and `Parameters` records the current one.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor


class _Current(threading.local):
    parameter: tf.Variable | None = None


_CURRENT = _Current()


class Parameters(Sequence):
    """A sequence of parameters that records the current one of an iteration.

    If a loop ends early, its last parameter remains recorded until `stop`.
    """

    def __init__(self, parameters: Sequence[tf.Variable]):
        """Copies `parameters`."""
        self._parameters = list(parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __getitem__(self, index: Any) -> Any:
        return self._parameters[index]

    def __iter__(self) -> Iterator[tf.Variable]:
        for parameter in self._parameters:
            _CURRENT.parameter = parameter
            yield parameter
        _CURRENT.parameter = None

    def stop(self) -> None:
        """Forgets the recorded parameter."""
        _CURRENT.parameter = None


def owner(shape: tf.TensorShape | None) -> tf.Variable | None:
    """Returns the parameter whose slot is being created in this thread.

    Args:
      shape: shape of the variable that is being created; None if unknown.

    Returns:
      The parameter; None if no slot is being created, or if the shape of the slot differs from its
      parameter's, as that of a counter or of a factor of Adafactor does.
    """
    parameter = _CURRENT.parameter
    if parameter is None or (shape is not None and shape != parameter.shape):
        return None
    return parameter


def in_layout_of(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    """Gives a tensor the layout of a variable on a mesh; a no-op for all other variables.

    The layout that DTensor infers for a gradient may differ from its parameter's, and fused kernels
    abort the process if the layouts of their arguments differ.

    Args:
      variable: any variable.
      value: tensor of the variable's shape.

    Returns:
      The tensor, in the variable's layout.
    """
    layout = getattr(variable, "layout", None)
    return value if layout is None else dtensor.relayout(value, layout)


def check(updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
    """Refuses updates that do not belong to the parameters.

    Args:
      updates: a tensor, `tf.IndexedSlices` or None for each parameter.
      parameters: one or more parameters.

    Raises:
      ValueError: if lengths or dtypes differ, or there is no parameter or no update at all.
    """
    if len(updates) != len(parameters):
        raise ValueError(
            "expected updates and parameters of the same length, got "
            f"{len(updates)} and {len(parameters)}"
        )
    if not parameters:
        raise ValueError("expected at least one parameter, got none")
    if all(update is None for update in updates):
        raise ValueError("expected an update for at least one parameter, got None for all")
    for update, parameter in zip(updates, parameters, strict=True):
        if update is not None and update.dtype != parameter.dtype:
            raise ValueError(
                f"expected an update of {parameter.name!r} with dtype {parameter.dtype.name}, got "
                f"{update.dtype.name}"
            )
