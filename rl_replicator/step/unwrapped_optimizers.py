"""Finds optimizers that a step applies although they do not average gradients over replicas."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import sonnet as snt
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.collectives import call_log
from rl_replicator.optimizers import wrapping

# The base classes of all optimizers of a library, and their methods that apply updates.
_ENTRY_POINTS: tuple[tuple[type, str], ...] = (
    (snt.Optimizer, "apply"),
    (tf.keras.optimizers.Optimizer, "apply_gradients"),
    # `wrap_optimizer` supports none of these.
    (tf.keras.optimizers.legacy.Optimizer, "apply_gradients"),
    (tf.compat.v1.train.Optimizer, "apply_gradients"),
)
_LOCK = threading.RLock()


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Refuses unwrapped optimizers in steps that are traced inside the context.

    Without averaged gradients, replicas diverge (Sonnet) or sum the gradients (Keras), without any
    error. Such an optimizer is also refused on a single replica, where the results would be
    correct: a step function must not depend on where it runs.

    Raises:
      ConfigError: from inside the step, naming the optimizer's class.
    """
    with _LOCK:
        replaced: list[tuple[type, str, Any]] = []
        try:
            for base, name in _ENTRY_POINTS:
                for kind in _family(base):
                    if name in vars(kind) and not issubclass(kind, wrapping.Wrapped):
                        original = vars(kind)[name]
                        replaced.append((kind, name, original))
                        setattr(kind, name, _guarded(original))
            yield
        finally:
            for kind, name, original in reversed(replaced):
                setattr(kind, name, original)


def _family(base: type) -> Iterator[type]:
    """Yields a class and all its subclasses, including the user's."""
    found = {base}
    pending = [base]
    while pending:
        kind = pending.pop()
        yield kind
        # Called on `type`, because a class may define an attribute of that name.
        fresh: set[type] = set(type.__subclasses__(kind)) - found
        found |= fresh
        pending.extend(fresh)


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        _check(self)
        return method(self, *args, **kwargs)

    return guarded


@tf.autograph.experimental.do_not_convert
def _check(optimizer: Any) -> None:
    is_in_step = not tf.executing_eagerly() and call_log.enclosing() is not None
    if is_in_step and not wrapping.is_applying():
        raise errors.ConfigError(
            "expected an optimizer that averages gradients over the replicas, found an unwrapped "
            f"{type(optimizer).__name__} in the step; use replicator.wrap_optimizer with one of "
            "snt.optimizers, rr.optimizers or tf.keras.optimizers"
        )
