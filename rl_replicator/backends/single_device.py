"""One replica on one device."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from rl_replicator import errors, replicator


class SingleDeviceReplicator(replicator.Replicator):
    """One replica on the default device, without a distribution strategy in the way."""

    def __init__(self) -> None:
        super().__init__(tf.distribute.get_strategy())

    @classmethod
    def from_text(cls, argument: str) -> "SingleDeviceReplicator":
        if argument:
            raise errors.ConfigError(
                f"expected single_device without an argument, got {argument!r}; leave it out, or "
                "use multi_device"
            )
        return cls()

    @functools.cached_property
    def strategy(self) -> tf.distribute.Strategy:
        # Estimators do not take the default strategy.
        has_gpu = tf.config.list_physical_devices("GPU")
        return tf.distribute.OneDeviceStrategy("/gpu:0" if has_gpu else "/cpu:0")

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        with self.registry.recording():
            yield

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        return [function(0)]
