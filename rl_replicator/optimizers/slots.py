"""The parameter that an optimizer's slot belongs to, known while the slot is created.

A slot must lie where its parameter lies: in its layout on a mesh, on its logical device. Sonnet and
Keras tell a variable creator only the slot's name and initial value, but all of their optimizers
create slots in loops over the parameters: `Parameters` records whose turn it is.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor


class _State(threading.local):
    parameter: tf.Variable | None = None


_STATE = _State()


class Parameters(Sequence):
    """A sequence of parameters that records which one is being iterated over.

    Leaving a loop early keeps its parameter recorded until `stop`.
    """

    def __init__(self, parameters: Sequence[tf.Variable]):
        self._parameters = list(parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __getitem__(self, index: Any) -> Any:
        return self._parameters[index]

    def __iter__(self) -> Iterator[tf.Variable]:
        for parameter in self._parameters:
            _STATE.parameter = parameter
            yield parameter
        _STATE.parameter = None

    def stop(self) -> None:
        """Forgets the recorded parameter."""
        _STATE.parameter = None


def owner(shape: tf.TensorShape | None) -> tf.Variable | None:
    """The parameter whose slot is being created in this thread.

    Args:
      shape: of the variable that is being created; None if unknown.

    Returns:
      The parameter, or None outside of an optimizer's slots and for slots of another shape, such
      as counters and the factors of Adafactor.
    """
    parameter = _STATE.parameter
    if parameter is None or (shape is not None and shape != parameter.shape):
        return None
    return parameter


def in_layout_of(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    """Gives a tensor the layout of a variable on a mesh; a no-op for all other variables.

    DTensor infers a layout for every gradient, which need not be its parameter's. Fused kernels
    abort the process if the layouts of their arguments differ.

    Args:
      variable: any variable.
      value: a tensor of the variable's shape.

    Returns:
      The same values.
    """
    layout = getattr(variable, "layout", None)
    return value if layout is None else dtensor.relayout(value, layout)
