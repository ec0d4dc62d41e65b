"""A record of the collectives that each replica calls while a step is traced."""

import contextlib
import weakref
from collections.abc import Iterator

import tensorflow as tf

from rl_replicator import errors


class CallLog:
    """The collectives of one step, in the order in which each replica called them."""

    def __init__(self) -> None:
        self._calls: dict[int, list[str]] = {}

    def record(self, replica: int, call: str) -> None:
        """Records a collective.

        Args:
          replica: index of the replica within this process.
          call: text of the collective: its kind, nest, dtypes and shapes, which are equal on all
            replicas of a correct step.
        """
        self._calls.setdefault(replica, []).append(call)

    def calls(self) -> list[str]:
        """Returns the calls of the first replica."""
        return self._calls.get(0, [])

    def check(self, num_replicas: int) -> None:
        """Compares the calls of all replicas of this process.

        Args:
          num_replicas: number of replicas of this process.

        Raises:
          ConfigError: if they differ; names the first difference.
        """
        for replica in range(1, num_replicas):
            compare("replica 0", self.calls(), f"replica {replica}", self._calls.get(replica, []))


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
                f"{second}; make the step's collectives independent of the replica"
            )


_LOGS: "weakref.WeakKeyDictionary[tf.Graph, CallLog]" = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def recording() -> Iterator[CallLog]:
    """Records the collectives of a step that is traced in the current graph.

    Yields:
      The log.
    """
    log = CallLog()
    _LOGS[tf.compat.v1.get_default_graph()] = log
    yield log


def current() -> CallLog | None:
    """Returns the log of the current graph; None if no step is being traced.

    Raises:
      ConfigError: inside a `tf.cond`, a loop or a nested `tf.function` of a step.
    """
    log = _LOGS.get(tf.compat.v1.get_default_graph())
    if log is None and enclosing() is not None:
        raise errors.ConfigError(
            "expected collectives (and optimizer.apply, which averages gradients) at the top "
            "level of step_fn, found one inside tf.cond, a loop on tensors or a nested "
            "tf.function, which some replicas may skip; call it outside and use the result"
        )
    return log


def enclosing() -> CallLog | None:
    """Returns the log of the step around the current graph, however deep; None outside of steps."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if graph in _LOGS:
            return _LOGS[graph]
        graph = getattr(graph, "outer_graph", None)
    return None
