"""Finds the moving statistics of layers in a step, and restores them if the step is skipped."""

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator

import tensorflow as tf

from rl_replicator.graphs import assignments

# Statistics that their layers have declared, by id, because variables cannot be hashed.
_DECLARED: "weakref.WeakValueDictionary[int, tf.Variable]" = weakref.WeakValueDictionary()


class _BeforeStep(threading.local):
    """Variables and their values before the step that this thread is tracing."""

    before: list[tuple[tf.Variable, tf.Tensor]] | None = None


_STATE = _BeforeStep()


def declare(variables: Iterable[tf.Variable]) -> None:
    """Marks variables as moving statistics, which a skipped step must not change.

    Layers outside of this package declare theirs by `trainable=False` and
    `tf.VariableAggregation.MEAN`, as `tf.keras.layers.BatchNormalization` does; see `averaged`.
    """
    for variable in variables:
        _DECLARED[id(variable)] = variable


def is_declared(variable: tf.Variable) -> bool:
    """Whether `declare` was called for a variable."""
    return id(variable) in _DECLARED


def averaged(variable: tf.Variable) -> bool:
    """Whether a variable was created to be averaged over replicas: a moving statistic."""
    return (
        variable.aggregation == tf.VariableAggregation.MEAN
        and not variable.trainable
        and variable.dtype.is_floating
    )


def among(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    """Returns those of the variables that are moving statistics, in the same order."""
    return [v for v in variables if averaged(v) or is_declared(v)]


@contextlib.contextmanager
def snapshot(variables: Iterable[tf.Variable]) -> Iterator[None]:
    """Reads all moving statistics, so that `restore_unless` can undo the updates made inside.

    Entered while a step is traced, in the thread and graph of each replica.

    Args:
      variables: all variables of the replicator; only moving statistics are read.
    """
    _STATE.before = [(variable, variable.read_value()) for variable in among(variables)]
    try:
        yield
    finally:
        _STATE.before = None


def restore_unless(finite: tf.Tensor) -> None:
    """Resets the statistics that the step has updated so far to their values before the step.

    Batch norm updates them in the forward pass, before it is known whether the gradients are
    finite, and a NaN in a moving average would stay there forever.

    Args:
      finite: bool scalar; nothing changes if it is true.
    """
    before = _STATE.before or []
    for variable in written([variable for variable, _ in before]):
        value = next(value for other, value in before if other is variable)
        # Not a scalar condition, which a mesh does not support for other tensors.
        everywhere = tf.fill(tf.shape(value), finite)
        variable.assign(tf.where(everywhere, variable.read_value(), value))


def written(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    """Returns those of the variables that the step assigns, in the same order.

    This includes assignments in the graphs around the current one: a branch of `tf.cond` is a graph
    of its own, and the step's earlier operations are in another.

    Args:
      variables: the variables as they were created, each with the copies of all replicas.
    """
    captures: list[tuple[tf.Tensor, tf.Tensor]] = []
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        captures.extend(getattr(graph, "captures", ()))
        graph = getattr(graph, "outer_graph", None)
    return assignments.assigned(captures, variables)
