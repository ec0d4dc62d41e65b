"""Groups tensors that can be packed into one, so that a graph needs fewer operations."""

import math
from collections.abc import Sequence

import tensorflow as tf


def same_kind(tensors: Sequence[tf.Tensor], most_elements: int) -> list[list[int]]:
    """Groups tensors by type and shape.

    Args:
      tensors: tensors of any types and shapes.
      most_elements: maximum number of elements of a tensor that shares a group. Packing would copy
        larger tensors, so each has its own group; so does each tensor of unknown shape.

    Returns:
      The indices of the tensors in each group, in the order of each group's first tensor.
    """
    groups: dict[object, list[int]] = {}
    for index, x in enumerate(tensors):
        is_packed = x.shape.is_fully_defined() and math.prod(x.shape) <= most_elements
        groups.setdefault((x.dtype, *x.shape) if is_packed else index, []).append(index)
    return list(groups.values())
