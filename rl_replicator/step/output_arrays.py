"""Collects the outputs of several steps inside a graph."""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from rl_replicator import errors

# Larger tensors have their own arrays, because packing would copy them.
_MOST_ELEMENTS = 1024
# Name scope of the stacking operations, by which `failure` recognizes their errors.
_SCOPE = "stacked_outputs"


class OutputArrays:
    """Stacks each output of a step over the steps of a loop.

    Small outputs of the same shape and type share an array. With separate operations per output,
    these took a third of the time to trace a step, because learners return many scalars, each once
    per replica.
    """

    def __init__(self, outputs: Sequence[tf.Tensor]):
        """Groups the outputs of a traced step."""
        self._num_outputs = len(outputs)
        groups: dict[object, list[int]] = {}
        for index, x in enumerate(outputs):
            is_packed = x.shape.is_fully_defined() and math.prod(x.shape) <= _MOST_ELEMENTS
            groups.setdefault((x.dtype, *x.shape) if is_packed else index, []).append(index)
        # The indices of the outputs in each array, and the spec of its elements.
        self._groups: list[tuple[list[int], tf.TensorSpec]] = []
        for group in groups.values():
            x = outputs[group[0]]
            shape = x.shape if len(group) == 1 else [len(group), *x.shape]
            self._groups.append((group, tf.TensorSpec(shape, x.dtype)))

    def make(self, count: int) -> list[tf.TensorArray]:
        """Creates empty arrays for at most `count` steps."""
        return [
            tf.TensorArray(spec.dtype, count, element_shape=spec.shape) for _, spec in self._groups
        ]

    def write(
        self, arrays: Sequence[tf.TensorArray], index: tf.Tensor, outputs: Sequence[tf.Tensor]
    ) -> list[tf.TensorArray]:
        """Stores the outputs of one step.

        Args:
          arrays: the arrays from `make`, or from the last `write`.
          index: int32 scalar, the number of steps stored before.
          outputs: the outputs of the step, in the same order as in the constructor.

        Returns:
          The arrays that include these outputs.
        """
        parts = [[outputs[i] for i in group] for group, _ in self._groups]
        return [
            array.write(index, part[0] if len(part) == 1 else tf.stack(part))
            for array, part in zip(arrays, parts, strict=True)
        ]

    def stack(self, arrays: Sequence[tf.TensorArray], count: tf.Tensor) -> list[tf.Tensor]:
        """Stacks the stored outputs.

        Args:
          arrays: the arrays from the last `write`.
          count: int32 scalar, number of steps stored; may be 0.

        Returns:
          The outputs, each with a leading axis [count].
        """
        stacked: list[tf.Tensor] = [None] * self._num_outputs
        for rows, (group, _) in zip(self._gather(arrays, count), self._groups, strict=True):
            parts = [rows] if len(group) == 1 else tf.unstack(rows, axis=1)
            for index, part in zip(group, parts, strict=True):
                stacked[index] = part
        return stacked

    def _gather(self, arrays: Sequence[tf.TensorArray], count: tf.Tensor) -> list[tf.Tensor]:
        """Returns the elements of each array, [count, ...]."""

        def gather() -> list[tf.Tensor]:
            with tf.name_scope(_SCOPE):
                return [array.gather(tf.range(count)) for array in arrays]

        specs = [spec for _, spec in self._groups]
        if all(spec.shape.is_fully_defined() for spec in specs):
            return gather()
        # An array without elements does not determine unknown dimensions.
        empty = [tf.TensorSpec([0, *(s.shape if s.shape.rank else [])], s.dtype) for s in specs]
        return tf.cond(count > 0, gather, lambda: [blank(spec) for spec in empty])


def combine(
    function: Callable[[Sequence[tf.Tensor]], tf.Tensor], rows: Sequence[Sequence[tf.Tensor]]
) -> list[tf.Tensor]:
    """Combines the outputs of several calls, outside of a graph.

    Args:
      function: stacks or concatenates the values of one output.
      rows: the outputs of each call.

    Raises:
      ConfigError: if the values of an output differ in shape.
    """
    try:
        return [function(column) for column in zip(*rows, strict=True)]
    except tf.errors.InvalidArgumentError:
        raise _different_shapes() from None


def blank(output: tf.Tensor | tf.TensorSpec) -> tf.Tensor:
    """Returns a placeholder value of an output's dtype, for a call that takes no step.

    Args:
      output: the output of a traced step, or a spec; unknown dimensions become 0.
    """
    if output.dtype == tf.variant:  # A dataset or an Optional, which `tf.zeros` cannot make.
        return tf.raw_ops.OptionalNone()
    return tf.zeros([d or 0 for d in (output.shape if output.shape.rank else [])], output.dtype)


def failure(error: Exception) -> Exception:
    """Translates TensorFlow's error about stacking outputs of different shapes."""
    if isinstance(error, tf.errors.InvalidArgumentError) and f"{_SCOPE}/" in str(error):
        return _different_shapes()
    return error


def _different_shapes() -> errors.ConfigError:
    return errors.ConfigError(
        "expected outputs of the same shape in all steps of a call (steps_per_call), got "
        "different ones; return a scalar, pad the output, or leave steps_per_call out"
    )
