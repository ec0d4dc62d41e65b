"""Gradient accumulation: gradients of batches that do not fit into memory as a whole."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.collectives import collectives
from rl_replicator.graphs import leaves


def accumulate(function: Callable[[Any], Any], batch: Any, num_micro_batches: int) -> Any:
    """Averages `function(micro_batch)` over equal parts of a batch, in a compiled loop.

        def loss_and_gradients(batch):
            with tf.GradientTape() as tape:
                loss = loss_of(model, batch)                    # a mean over examples
            return loss, tape.gradient(loss, parameters)

        loss, gradients = rr.micro_batches.accumulate(loss_and_gradients, batch, 4)
        optimizer.apply(gradients, parameters)                  # averages over replicas, once

    If the loss is a mean over examples, these are the loss and the gradients of the whole batch.
    Layers that depend on the batch as a whole, such as batch norm, see micro-batches. Only one
    micro-batch is in memory at a time. `function` must not call collectives, because it runs in a
    loop.

    Args:
      function: maps a micro-batch to a nest of tensors, `tf.IndexedSlices` and None, of the same
        shapes for all micro-batches; slices may have different numbers of rows.
      batch: nest of tensors, [B, ...], and None.
      num_micro_batches: number of micro-batches, which divides B.

    Returns:
      The nest that `function` returns; slices have the rows of all micro-batches. float16 and
      bfloat16 are summed in float32, and the mean of integers and bools is float32.

    Raises:
      ConfigError: if `num_micro_batches` does not divide B, or the tensors of the batch are not all
        dense and of the same length.
      InvalidArgumentError: when the step runs, if B is dynamic and not divisible.
    """
    batch = leaves.as_tensors(batch, "in the batch")
    dense = [x for x in tf.nest.flatten(batch) if x is not None]
    size = _size(dense, num_micro_batches)
    # Fails when the step runs, with XLA too, if a tensor has another length.
    parts = [tf.reshape(x, [num_micro_batches, size, *_rest(x)]) for x in dense]
    with tf.control_dependencies(parts):  # Before any micro-batch changes a variable.
        parts = [tf.identity(x) for x in parts]

    def part(i: Any) -> Any:
        rest = iter([tf.gather(x, i) for x in parts])
        return tf.nest.map_structure(lambda x: None if x is None else next(rest), batch)

    # The first micro-batch runs outside the loop, whose state needs the structure of its result.
    first = function(part(0))
    flat = [y for y in tf.nest.flatten(first) if y is not None]

    def body(i: Any, carried: Any) -> Any:
        found = [y for y in tf.nest.flatten(function(part(i))) if y is not None]
        if len(found) != len(flat):
            raise errors.ConfigError(
                f"expected the same nest for every micro-batch, got {len(flat)} tensors and then "
                f"{len(found)}; make the function's nest independent of Python state"
            )
        return i + 1, [_add(c, y, i) for c, y in zip(carried, found, strict=True)]

    carried = [_start(y, num_micro_batches) for y in flat]
    if num_micro_batches > 1:
        _, carried = tf.while_loop(
            lambda i, _: i < num_micro_batches,
            body,
            [tf.constant(1), carried],
            parallel_iterations=1,
        )
    means = iter([_mean(c, y, num_micro_batches) for c, y in zip(carried, flat, strict=True)])
    return tf.nest.map_structure(lambda y: None if y is None else next(means), first)


def _size(batch: list[tf.Tensor], num_micro_batches: int) -> Any:
    """Returns the number of examples in a micro-batch: an int, or a scalar if it is dynamic."""
    errors.check_count("num_micro_batches", num_micro_batches, "use 1 for the whole batch")
    are_batches = bool(batch) and all(x.shape.rank != 0 for x in batch)
    lengths = {x.shape[0] for x in batch} - {None} if are_batches else set()
    if not are_batches or len(lengths) > 1 or any(n % num_micro_batches for n in lengths):
        raise errors.ConfigError(
            f"expected tensors [B, ...] of one B, a multiple of {num_micro_batches} micro-batches, "
            f"got shapes {', '.join(str(x.shape) for x in batch) or 'of no tensor'}; change the "
            "batch or the number, and leave out what has no entry for each example"
        )
    return (lengths.pop() if lengths else tf.shape(batch[0])[0]) // num_micro_batches


def _rest(x: tf.Tensor) -> list[Any]:
    """Returns the shape of an example; an int for each known dimension."""
    return [tf.shape(x)[i] if x.shape[i] is None else x.shape[i] for i in range(1, x.shape.rank)]


def _start(y: Any, count: int) -> Any:
    """Returns the initial loop state for `y`: a sum, or arrays of the rows of slices."""
    if not isinstance(y, tf.IndexedSlices):
        return _exact(y)
    arrays = [
        tf.TensorArray(x.dtype, count, infer_shape=False, element_shape=[None, *x.shape[1:]])
        for x in (_exact(y.values), y.indices)
    ]
    return _add(arrays, y, 0)


def _add(carried: Any, y: Any, i: Any) -> Any:
    if not isinstance(y, tf.IndexedSlices):
        return carried + _exact(y)
    values, indices = carried
    return [values.write(i, _exact(y.values)), indices.write(i, y.indices)]


def _mean(carried: Any, y: Any, count: int) -> Any:
    """Returns the mean in the dtype of `y`, a micro-batch's result; float32 for integers."""
    if not isinstance(y, tf.IndexedSlices):
        _, result = collectives.types_of_mean(tf.convert_to_tensor(y).dtype)
        return tf.cast(carried / count, result)
    values, indices = (array.concat() for array in carried)
    return tf.IndexedSlices(tf.cast(values / count, y.values.dtype), indices, y.dense_shape)


def _exact(y: Any) -> tf.Tensor:
    """Casts to a dtype in which sums neither overflow nor lose small addends."""
    y = tf.convert_to_tensor(y)
    return tf.cast(y, collectives.types_of_mean(y.dtype)[0])
