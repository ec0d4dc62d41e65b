"""Records the variables that belong to a replicator, and finds others in its steps."""

import contextlib
import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.graphs import assignments
from rl_replicator.layers import statistics


class Registry:
    """The variables that were created inside a replicator's scope.

    A variable that was created outside has a single copy, which all replicas would assign without
    an error from TensorFlow. So a step that uses such a variable is refused when it is built.
    """

    def __init__(self) -> None:
        self._owners: dict[int, weakref.ref] = {}
        self._created: list[weakref.ref] = []
        # Counters of moving averages of Sonnet by name scope, and the scopes with local averages.
        self._counters: dict[str, list[weakref.ref]] = {}
        self._local_scopes: set[str] = set()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Records the variables created inside the context."""

        def creator(next_creator: Any, **kwargs: Any) -> Any:
            if self._is_local_average(kwargs):
                kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
                kwargs["aggregation"] = tf.VariableAggregation.MEAN
            variable = next_creator(**kwargs)
            if kwargs.get("name") == "counter":
                scope = tf.get_current_name_scope()
                self._counters.setdefault(scope, []).append(weakref.ref(variable))
            # `copy.deepcopy` uses this if it exists.
            variable.__deepcopy__ = functools.partial(_copy, weakref.ref(variable))
            self._created.append(weakref.ref(variable))
            for component in assignments.copies(variable):
                self._owners[id(component.handle)] = weakref.ref(component)
            packed = assignments.packed(variable)
            if packed is not None:
                self._owners[id(packed.packed_handle)] = weakref.ref(packed)
            return variable

        with tf.variable_creator_scope(creator):
            yield

    def _is_local_average(self, kwargs: dict[str, Any]) -> bool:
        """Whether an `snt.ExponentialMovingAverage` creates a variable, as known by its names.

        Sonnet's batch norm moves it by the batch of each replica, so that the copies are averaged
        after each step, as those of Keras are. Those of our batch norm are equal, and declared.
        """
        scope = tf.get_current_name_scope()
        found = [reference() for reference in self._counters.get(scope, ())]
        counters = [counter for counter in found if counter is not None]
        is_part = kwargs.get("name") in ("hidden", "average") and kwargs.get("trainable") is False
        if is_part and not all(statistics.is_declared(counter) for counter in counters):
            self._local_scopes.add(scope)
            statistics.declare(counters)  # A skipped step is not counted, either.
        return is_part and scope in self._local_scopes

    def created(self) -> list[tf.Variable]:
        """The variables, in the order of their creation, each with the copies of all replicas."""
        found = [reference() for reference in self._created]
        return [variable for variable in found if variable is not None]

    def assigned_by(self, function: tf.types.experimental.ConcreteFunction) -> list[tf.Variable]:
        """Returns the variables that a traced step assigns, each with the copies of all replicas.

        Args:
          function: the step. The functions that it calls count, too.
        """
        return assignments.assigned(function.graph.captures, self.created())

    def has_any(self, variables: Iterable[tf.Variable]) -> bool:
        """Whether any of the variables, given as they were created, was created inside."""
        handles = (i for v in variables for i in assignments.handle_ids(v))
        return any(self._owner(handle) is not None for handle in handles)

    def owns(self, handle: tf.Tensor) -> bool:
        """Whether `handle` belongs to a variable that was created inside the scope."""
        return self._owner(id(handle)) is not None

    def _owner(self, handle_id: int) -> Any:
        """Returns the copy to which a handle belongs; None if it was created elsewhere."""
        return self._owners.get(handle_id, lambda: None)()

    def used_by(self, function: tf.types.experimental.ConcreteFunction) -> list[tf.Variable]:
        """Returns the variables that a traced step uses, each with the copies of all replicas."""
        used = {id(handle) for handle, _ in function.graph.captures}
        return [v for v in self.created() if not used.isdisjoint(assignments.handle_ids(v))]

    def check(self, function: tf.types.experimental.ConcreteFunction) -> None:
        """Refuses a traced step that uses a variable from outside the scope.

        Raises:
          ConfigError: if there is such a variable; names the first one.
        """
        for handle, inside in function.graph.captures:
            if handle.dtype != tf.resource or not _is_variable(handle) or _is_token(inside):
                continue
            if not self.owns(handle):
                raise errors.created_outside(_name(function, handle))


def lifted(next_creator: Any, **kwargs: Any) -> tf.Variable:
    """Creates a variable outside of the graph; a creator for `tf.variable_creator_scope`.

    Inside the graph, the copies of the other replicas would be initialized from the first
    replica's, which TensorFlow cannot do before the first step.

    Args:
      next_creator: see `tf.variable_creator_scope`.
      **kwargs: see `tf.Variable`.

    Raises:
      ConfigError: see `initial_value`.
    """
    kwargs["initial_value"] = initial_value(kwargs["initial_value"], kwargs.get("name"))
    with tf.init_scope():
        return next_creator(**kwargs)


def initial_value(value: Any, name: str | None) -> Any:
    """Returns an initial value that does not depend on a graph; see `tf.Variable`.

    Args:
      value: a tensor, a value that can be converted to one, or a function that returns one.
      name: name of the variable, for the error.

    Raises:
      ConfigError: if the value is computed in a graph.
    """
    if not any(tf.is_symbolic_tensor(part) for part in tf.nest.flatten(value)):
        return value
    constant = tf.get_static_value(tf.convert_to_tensor(value))
    if constant is None:
        raise errors.ConfigError(
            "expected an initial value that does not depend on the step for variable "
            f"{name or 'Variable'!r}, got a computed one; create it before `replicate`, or pass a "
            "function that returns the value"
        )
    return constant


def _copy(reference: weakref.ref, memo: dict[int, Any]) -> tf.Variable:
    """Copies a variable through variable creators, for `copy.deepcopy` of a model in `scope()`.

    TensorFlow's own method calls no variable creators, so its copy would belong to no replicator.

    Args:
      reference: refers to the variable.
      memo: see `copy.deepcopy`.
    """
    del memo
    original: Any = reference()
    copies = assignments.copies(original)
    copied = tf.Variable(
        copies[0].read_value(),
        trainable=original.trainable,
        name=original.name.partition(":")[0],
        dtype=original.dtype,
        constraint=original.constraint,
        synchronization=original.synchronization,
        aggregation=original.aggregation,
        shape=original.shape,
    )
    if original.synchronization == tf.VariableSynchronization.ON_READ:  # Its copies may differ.
        for target, source in zip(assignments.copies(copied), copies, strict=False):
            target.assign(source.read_value())
    if statistics.is_declared(original):
        statistics.declare([copied])
    return copied


def _is_variable(handle: tf.Tensor) -> bool:
    data = getattr(handle, "_handle_data", None)
    return data is not None and data.is_set and len(data.shape_and_type) == 1


def _is_token(handle: tf.Tensor) -> bool:
    """Whether this is only TensorFlow's internal variable that keeps collectives in order."""
    users = handle.consumers()
    return bool(users) and all(user.type.startswith("Collective") for user in users)


def _name(function: tf.types.experimental.ConcreteFunction, handle: tf.Tensor) -> str:
    for variable in function.graph.variables:
        if variable.handle is handle:
            return f"{variable.name!r} {variable.shape}"
    data = handle._handle_data.shape_and_type[0]
    shape = tf.TensorShape(data.shape)
    return f"a variable of shape {shape} and type {tf.as_dtype(data.dtype).name}"
