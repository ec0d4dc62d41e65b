"""What is known of a step while it is traced: what its replicas say to each other."""

import contextlib
import weakref
from collections.abc import Iterator

import tensorflow as tf

from rl_replicator import errors


class Trace:
    """The collectives of one step, in the order in which each replica called them."""

    def __init__(self) -> None:
        self._calls: dict[int, list[str]] = {}

    def record(self, replica: int, call: str) -> None:
        """Notes a collective.

        Args:
          replica: number of the replica within this process.
          call: kind, nest, dtypes and shapes, as text: equal on all replicas of a right step.
        """
        self._calls.setdefault(replica, []).append(call)

    def calls(self) -> list[str]:
        """The calls of the first replica."""
        return self._calls.get(0, [])

    def check(self, num_replicas: int) -> None:
        """Refuses a step whose replicas did not all make the same calls.

        Raises:
          ConfigError: names the first difference.
        """
        for replica in range(1, num_replicas):
            compare("replica 0", self.calls(), f"replica {replica}", self._calls.get(replica, []))


def compare(one: str, its_calls: list[str], other: str, other_calls: list[str]) -> None:
    """Raises `ConfigError` at the first call in which the two differ."""
    for number in range(max(len(its_calls), len(other_calls))):
        here = its_calls[number] if number < len(its_calls) else "nothing"
        there = other_calls[number] if number < len(other_calls) else "nothing"
        if here != there:
            raise errors.ConfigError(
                "expected all replicas to call the same collectives in the same order with the "
                f"same nests and shapes; in call {number + 1} {one} has {here}, {other} has "
                f"{there}; make the step's collectives independent of the replica"
            )


_TRACES: "weakref.WeakKeyDictionary[tf.Graph, Trace]" = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def tracing() -> Iterator[Trace]:
    """Entered by a replicated step while it is traced, in its graph."""
    trace = Trace()
    _TRACES[tf.compat.v1.get_default_graph()] = trace
    yield trace


def current() -> Trace | None:
    """The trace that a collective belongs to; None where no step is being traced.

    Raises:
      ConfigError: inside a `tf.cond`, a loop or a nested `tf.function` of a step.
    """
    here = _TRACES.get(tf.compat.v1.get_default_graph())
    if here is None and enclosing() is not None:
        raise errors.ConfigError(
            "expected collectives (and optimizer.apply, which averages gradients) at the top "
            "level of step_fn, found one inside tf.cond, a loop on tensors or a nested "
            "tf.function, which not all replicas may reach; call it outside and use the result"
        )
    return here


def enclosing() -> Trace | None:
    """The trace of the step around this place, however deep inside of it; None outside of all."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if graph in _TRACES:
            return _TRACES[graph]
        graph = getattr(graph, "outer_graph", None)
    return None
