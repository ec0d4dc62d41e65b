"""A record of the collectives that each replica calls while a step is traced."""

import re
import weakref
from collections.abc import Callable

import tensorflow as tf

from rl_replicator import errors


class CallLog:
    """The collectives of one step, in the order in which each replica called them, and its results.

    Attributes:
      scaled_by: names of the functions that have divided losses of the step by the number of
        replicas.
      sums: shapes of the losses that are no scalars.
      reductions: how optimizers of the step reduce gradients: "mean", "sum" and "none".
      at_end: functions that each replica calls at the end of its step, in the order of the keys;
        repeating them has no effect.
    """

    def __init__(self) -> None:
        self._calls: dict[int, list[str]] = {}
        self.scaled_by: set[str] = set()
        self.sums: set[str] = set()
        self.reductions: set[str] = set()
        self.at_end: dict[Callable[[], None], None] = {}

    def record(self, replica: int, call: str) -> None:
        """Records a collective.

        Args:
          replica: index of the replica within this process.
          call: text of the collective: its kind, nest, dtypes and shapes, which are equal on all
            replicas of a correct step; at last, the nest of the results.
        """
        self._calls.setdefault(replica, []).append(call)

    def calls(self) -> list[str]:
        """Returns the calls of the first replica."""
        return self._calls.get(0, [])

    def check(self, num_replicas: int, has_ended: bool = True) -> None:
        """Compares the calls of all replicas of this process.

        Args:
          num_replicas: number of replicas of this process.
          has_ended: whether the step was traced to its end on all replicas; otherwise only calls
            that both replicas made are compared.

        Raises:
          ConfigError: if they differ; names the first difference.
        """
        for replica in range(1, num_replicas):
            calls, other = self.calls(), self._calls.get(replica, [])
            most = None if has_ended else min(len(calls), len(other))
            compare("replica 0", calls[:most], f"replica {replica}", other[:most])


def compare(one: str, calls: list[str], other: str, other_calls: list[str]) -> None:
    """Compares the calls of two replicas.

    Args:
      one: name of the first replica, for the error.
      calls: calls of the first replica.
      other: name of the second replica.
      other_calls: calls of the second replica.

    Raises:
      ConfigError: if they differ; names the first difference.
    """
    for number in range(max(len(calls), len(other_calls))):
        first = calls[number] if number < len(calls) else "nothing"
        second = other_calls[number] if number < len(other_calls) else "nothing"
        if first != second:
            raise errors.ConfigError(
                "expected all replicas to call the same collectives in the same order with the "
                f"same nests and shapes; in call {number + 1} {one} has {first}, {other} has "
                f"{second}; make the step's collectives and results independent of the replica"
            )


# Name scopes in which `tf.vectorized_map` and `tape.jacobian` trace the function of one row.
_VECTORIZED = re.compile(r"(^|/)loop_body(_\d+)?(/|$)")

_LOGS: "weakref.WeakKeyDictionary[tf.Graph, CallLog]" = weakref.WeakKeyDictionary()


def begin() -> CallLog:
    """Records the collectives of a step that is traced in the current graph; returns the log."""
    log = _LOGS[tf.compat.v1.get_default_graph()] = CallLog()
    return log


def current() -> CallLog | None:
    """Returns the log of the current graph; None if no step is being traced.

    Raises:
      ConfigError: inside a `tf.cond`, a loop, a nested `tf.function` or a vectorized function of a
        step.
    """
    graph = tf.compat.v1.get_default_graph()
    log = _LOGS.get(graph)
    if log is not None and _VECTORIZED.search(graph.get_name_scope()):
        # The collective would combine one row of this replica with all rows of the others.
        raise errors.ConfigError(
            "expected collectives outside of tf.vectorized_map and of the body of tape.jacobian, "
            "which trace them for one row; call it outside and use the result"
        )
    if log is None and enclosing() is not None:
        raise errors.ConfigError(
            "expected collectives (and optimizer.apply, which averages gradients) at the top "
            "level of step_fn, found one inside tf.cond, a loop on tensors or a nested "
            "tf.function, which some replicas may skip; call it outside and use the result"
        )
    return log


def enclosing() -> CallLog | None:
    """Returns the log of the step around the current graph, however deep; None outside of steps."""
    return _search()[0]


def is_in_function() -> bool:
    """Whether the current graph is in a `tf.function` that a step calls; branches do not count."""
    log, is_nested = _search()
    return log is not None and is_nested


def _search() -> tuple[CallLog | None, bool]:
    """Returns the log of the step around, and whether a `tf.function` is between."""
    graph, is_nested = tf.compat.v1.get_default_graph(), False
    while graph is not None and graph not in _LOGS:
        is_nested |= not getattr(graph, "is_control_flow_graph", False)
        graph = getattr(graph, "outer_graph", None)
    return (None if graph is None else _LOGS[graph]), is_nested
