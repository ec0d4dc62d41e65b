"""Collects the outputs of several steps inside a graph."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.step import tensor_groups

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
        """Groups the outputs.

        Args:
          outputs: the outputs of a traced step.
        """
        self._outputs = list(outputs)
        self._groups = tensor_groups.same_kind(self._outputs, _MOST_ELEMENTS)

    def make(self, count: int) -> list[tf.TensorArray]:
        """Creates empty arrays.

        Args:
          count: the greatest possible number of steps.
        """
        return [
            tf.TensorArray(self._outputs[group[0]].dtype, count, element_shape=self._shape(group))
            for group in self._groups
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
        return [
            array.write(index, outputs[group[0]] if len(group) == 1 else _pack(outputs, group))
            for array, group in zip(arrays, self._groups, strict=True)
        ]

    def stack(self, arrays: Sequence[tf.TensorArray], count: tf.Tensor) -> list[tf.Tensor]:
        """Stacks the stored outputs.

        Args:
          arrays: the arrays from the last `write`.
          count: int32 scalar, number of steps stored; may be 0.

        Returns:
          The outputs, each with a leading axis [count].
        """
        stacked: list[tf.Tensor] = [None] * len(self._outputs)
        for rows, group in zip(self._gather(arrays, count), self._groups, strict=True):
            parts = [rows] if len(group) == 1 else tf.unstack(rows, axis=1)
            for index, part in zip(group, parts, strict=True):
                stacked[index] = part
        return stacked

    def _shape(self, group: Sequence[int]) -> tf.TensorShape:
        shape = self._outputs[group[0]].shape
        return shape if len(group) == 1 else tf.TensorShape([len(group), *shape])

    def _empty(self, group: Sequence[int]) -> tf.Tensor:
        if len(group) == 1:
            return blank(self._outputs[group[0]], [0])
        return blank(self._outputs[group[0]], [0, len(group)])

    def _gather(self, arrays: Sequence[tf.TensorArray], count: tf.Tensor) -> list[tf.Tensor]:
        """Returns the elements of each array, [count, ...]."""
        indices = tf.range(count)

        def gather() -> list[tf.Tensor]:
            with tf.name_scope(_SCOPE):
                return [array.gather(indices) for array in arrays]

        if all(self._shape(group).is_fully_defined() for group in self._groups):
            return gather()
        # An array without elements does not determine unknown dimensions.
        return tf.cond(count > 0, gather, lambda: [self._empty(group) for group in self._groups])


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


def blank(output: tf.Tensor | tf.TensorSpec, leading: Sequence[int] = ()) -> tf.Tensor:
    """Returns a placeholder value of an output's dtype, for a call that takes no step.

    Args:
      output: the output of a traced step, or a spec; unknown dimensions become 0.
      leading: dimensions before those of the output.
    """
    if output.dtype == tf.variant:  # A dataset or an Optional, which `tf.zeros` cannot make.
        return tf.raw_ops.OptionalNone()
    shape = [d or 0 for d in (output.shape if output.shape.rank else [])]
    return tf.zeros([*leading, *shape], output.dtype)


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


def _pack(outputs: Sequence[tf.Tensor], group: Sequence[int]) -> tf.Tensor:
    return tf.stack([outputs[index] for index in group])
